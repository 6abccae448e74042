"""Iceberg tables as targets: a SQL catalog in a real Postgres, with folders and a real S3 server as warehouses."""
