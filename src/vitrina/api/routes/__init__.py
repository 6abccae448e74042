"""One module a noun: each route parses, calls, answers."""
