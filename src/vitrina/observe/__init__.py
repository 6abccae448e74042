"""Provide telemetry of runs: logs, metrics, traces, lineage, notifications."""
