"""Durable background work as an extension of SQLAlchemy."""
