"""Values that sources, loads and targets exchange."""
