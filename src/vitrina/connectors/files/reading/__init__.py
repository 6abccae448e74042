"""Read files as a source: SQL over CSV, JSON Lines and Parquet, run by DuckDB in a separate process."""
