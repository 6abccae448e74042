"""The control plane over HTTP. Routes parse a request, call a service or the store, and answer. No data moves here."""
