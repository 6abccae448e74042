"""ClickHouse as a target, on the engine itself behind its HTTP protocol (`make test-clickhouse`)."""
