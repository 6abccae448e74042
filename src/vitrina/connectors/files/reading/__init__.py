"""Files as a source: SQL over CSV, JSON Lines and Parquet, answered by DuckDB in a process of its own."""
