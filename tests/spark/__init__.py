"""Loads that executors of a real Spark cluster bring: `make test-spark`."""
