"""Make logins cheap: one round of password hashing, because 4,096 are most of what a test's connection costs."""

import base64
import hashlib
import hmac
import os

from psycopg import sql


def quick_login(role: str, password: str) -> sql.Composed:
    """Build the statement that keeps the role's password with one round of hashing, on every version of PostgreSQL."""
    salt = os.urandom(16)
    salted = hashlib.pbkdf2_hmac("sha256", password.encode(), salt, iterations=1)
    stored_key = hashlib.sha256(hmac.digest(salted, b"Client Key", "sha256")).digest()
    server_key = hmac.digest(salted, b"Server Key", "sha256")
    verifier = f"SCRAM-SHA-256$1:{_text(salt)}${_text(stored_key)}:{_text(server_key)}"
    return sql.SQL("ALTER ROLE {} PASSWORD {}").format(sql.Identifier(role), sql.Literal(verifier))


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode()
