"""A year of hourly temperatures, summarised day by day in background jobs."""
