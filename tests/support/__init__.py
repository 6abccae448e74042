"""Provide what tests share: servers, workbenches, proxies."""
