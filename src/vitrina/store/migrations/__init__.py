"""Alembic migrations of the metastore: plain SQL, forward only."""
