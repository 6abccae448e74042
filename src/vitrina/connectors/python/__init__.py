"""Python functions as a source."""
