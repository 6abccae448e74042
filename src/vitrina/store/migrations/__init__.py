"""Migrate the metastore with Alembic: plain SQL, forward only."""
