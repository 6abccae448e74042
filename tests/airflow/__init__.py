"""The Airflow provider: its rules, and its tasks in a real Airflow."""
