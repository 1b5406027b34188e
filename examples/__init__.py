"""Applications that use the library, small enough to read."""
