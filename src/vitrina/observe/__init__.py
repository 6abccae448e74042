"""Telemetry of runs: logs, metrics, traces, lineage, notifications."""
