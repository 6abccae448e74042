"""Perform full loads, incremental runs and replays: plan, read, transform, write, checkpoint."""
