"""Whether a mart equals its source, row by row, and how to make it so."""
