"""Manage API tokens. Only their hashes are stored, and a revocation takes effect at once."""

import hashlib
import hmac
import re
import secrets
from datetime import timedelta

import psycopg

from vitrina.errors import Conflict, InvalidField, NotFound
from vitrina.sentences import say
from vitrina.services import audit
from vitrina.services.callers import Caller, Role
from vitrina.store import database, tokens
from vitrina.store.database import Connection
from vitrina.store.tokens import Row

# The prefix lets secret scanners find a token that was committed by mistake.
PREFIX = "vtr_"
_BYTES = 32
_LONGEST = 200
NAME = r"^[A-Za-z0-9][A-Za-z0-9_.@\-]{0,99}$"
MAX_EXPIRY_DAYS = 3650


def create(
    connection: Connection, caller: Caller, *, name: str, role: Role, expires_in_days: int | None = None
) -> tuple[Row, str]:
    """Create a token. Return its row and the secret, which cannot be read again."""
    if not re.match(NAME, name) or name.endswith("\n"):
        raise InvalidField("name", say("token.bad_name", name=name))
    if expires_in_days is not None and not 1 <= expires_in_days <= MAX_EXPIRY_DAYS:
        raise InvalidField("expires_in_days", say("token.expiry", most=MAX_EXPIRY_DAYS))
    secret = PREFIX + secrets.token_urlsafe(_BYTES)
    expires_at = database.now(connection) + timedelta(days=expires_in_days) if expires_in_days else None
    try:
        with connection.transaction():
            row = tokens.insert(connection, name=name, role=role, token_hash=hash_of(secret), expires_at=expires_at)
            after = {"role": str(role), "expires_at": expires_at.isoformat() if expires_at else None}
            audit.record(connection, caller, "create_token", f"token:{name}", after=after)
    except psycopg.errors.UniqueViolation as exc:
        raise Conflict(say("token.exists", name=name)) from exc
    return row, secret


def revoke(connection: Connection, caller: Caller, name: str) -> Row:
    with connection.transaction():
        row = tokens.revoke(connection, name)
        if row is None:
            raise NotFound(say("token.none", name=name))
        audit.record(connection, caller, "revoke_token", f"token:{name}")
        return row


def authenticate(connection: Connection, secret: str, *, request_id: str | None) -> Caller | None:
    """Find the caller that the token belongs to. Return None when it is unknown, revoked or expired."""
    if not secret.startswith(PREFIX) or len(secret) > _LONGEST:
        return None
    expected = hash_of(secret)
    row = tokens.find_by_hash(connection, expected)
    if row is None or not hmac.compare_digest(bytes(row["token_hash"]), expected) or not row["usable"]:
        return None
    if row["unseen"]:
        tokens.touch(connection, row["id"])
    return Caller(row["name"], Role(row["role"]), request_id)


def hash_of(secret: str) -> bytes:
    """Compute a plain hash, which is enough: the secret has 256 random bits, so it cannot be guessed."""
    return hashlib.sha256(secret.encode()).digest()
