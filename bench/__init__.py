"""Measure performance: every figure is a ratio against a reference measured in the same run. Not run as tests."""
