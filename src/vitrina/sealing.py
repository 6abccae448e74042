"""Seal a connection's URL with a runner's public key. The process that seals it cannot open it again."""

import hashlib
import os
from dataclasses import dataclass

PUBLIC_KEY_BYTES = 32
NONCE_BYTES = 12


@dataclass(frozen=True)
class Sealed:
    """Hold a sealed URL as it is stored. `box`: the public half of an ephemeral key, a nonce, the ciphertext."""

    key_id: str
    box: bytes


def seal(public_key: bytes, name: str, url: str) -> Sealed:
    """Encrypt with AES-GCM under a key that only the owner of `public_key` can compute; bound to the name."""
    # Imported here, because most processes never seal anything.
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    own = X25519PrivateKey.generate()
    own_public = own.public_key().public_bytes_raw()
    key = message_key(own.exchange(X25519PublicKey.from_public_bytes(public_key)), own_public, public_key)
    nonce, identity = os.urandom(NONCE_BYTES), key_id(public_key)
    return Sealed(identity, own_public + nonce + AESGCM(key).encrypt(nonce, url.encode(), associated(name, identity)))


def key_id(public_key: bytes) -> str:
    """Identify a public key; this says nothing about the secret half."""
    return hashlib.sha256(public_key).hexdigest()[:16]


def message_key(shared: bytes, own_public: bytes, public_key: bytes) -> bytes:
    """Derive the key from the shared secret (X25519) by HKDF, bound to the two public keys."""
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF

    return HKDF(SHA256(), 32, salt=own_public + public_key, info=b"vitrina connection 1").derive(shared)


def associated(name: str, identity: str) -> bytes:
    """Build the associated data of a box. A box that was moved to another name does not open."""
    return f"vitrina connection {name} under {identity}".encode()
