"""Example DAGs to copy; `airflow` does not load them automatically."""
