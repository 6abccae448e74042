"""Prove that nothing is lost, doubled or stuck."""
