"""Compare targets with their sources, repair the differences, and preview queries."""
