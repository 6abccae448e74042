"""Live mode, on real servers."""
