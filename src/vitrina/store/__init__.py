"""Access the metastore: every statement on schema `etl` is in this package, one module per noun."""
