"""Leaves with 0 when the runner on this host has sent a heartbeat within its lease."""

import socket
import sys

from vitrina import settings
from vitrina.store import database, runners

found = settings.load(dotenv=None)
with database.connect(found.require_database_url(), "vitrina:health", connect_timeout_seconds=3) as metastore:
    known = runners.list_all(metastore, stale_after_seconds=found.lease_ttl_seconds)
here = socket.gethostname()
sys.exit(not any(runner["alive"] and runner["host"] == here for runner in known))
