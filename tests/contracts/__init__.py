"""What every writer promises, in one suite."""
