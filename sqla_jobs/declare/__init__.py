"""What an application declares: jobs, their types and their rules. No SQLAlchemy here."""
