"""The control plane over HTTP: parses, calls a service or the store, answers. Never moves data."""
