"""Targets of Parquet files, in folders and on a real S3 server."""
