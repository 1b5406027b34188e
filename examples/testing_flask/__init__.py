"""A Flask application and the tests of its jobs."""
