"""What tests share: servers, workbenches, proxies."""
