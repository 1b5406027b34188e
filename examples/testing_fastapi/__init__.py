"""A FastAPI application and the tests of its jobs."""
