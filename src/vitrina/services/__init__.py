"""The control plane's business rules: plain functions, their dependencies as arguments, one noun a module."""
