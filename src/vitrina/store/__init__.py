"""The metastore: every statement on schema `etl` stands in this package, one noun a module."""
