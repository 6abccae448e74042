"""Claim runs, execute them, and keep the installation tidy. Knows nothing about HTTP."""
