"""Define what Vitrina's own connectors share with the runner beyond the ports: settings, sessions, SQL queries."""
