"""Claim and execute runs, and clean up after them. This package knows nothing about HTTP."""
