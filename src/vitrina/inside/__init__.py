"""What Vitrina's own connectors share with the runner beyond the ports: its settings, its sessions, queries in SQL."""
