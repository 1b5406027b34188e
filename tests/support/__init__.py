"""What the tests stand on: real servers, fresh databases, processes, bounded waiting."""
