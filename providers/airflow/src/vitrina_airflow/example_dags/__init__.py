"""DAGs to copy from; `airflow` does not load them by itself."""
