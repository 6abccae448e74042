"""Routes of the API, one module per resource. Each route parses, calls a service and answers."""
