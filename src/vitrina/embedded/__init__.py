"""Provide the PostgreSQL that runs when no database is configured, and the demo cinema that fills it."""
