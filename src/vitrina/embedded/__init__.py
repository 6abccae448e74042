"""The PostgreSQL that comes along when no database is configured, and the demo cinema that fills it."""
