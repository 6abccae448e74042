"""What a run does: plan, read, transform, write, checkpoint, for full loads, incremental runs and replays."""
