"""Define the values that sources, loads and targets exchange."""
