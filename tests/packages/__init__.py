"""Packages of somebody else: connectors that Vitrina knows nothing of until they are installed."""
