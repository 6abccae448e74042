"""Vitrina: configuration-driven ETL into Postgres marts and search indexes."""

__version__ = "0.1.0"
