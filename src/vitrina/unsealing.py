"""Open what `sealing` sealed. Only runners, and commands that have a runner's key, import this."""

from collections.abc import Sequence

from vitrina import sealing
from vitrina.errors import ConfigError
from vitrina.sealing import NONCE_BYTES, PUBLIC_KEY_BYTES, Sealed


class Keyring:
    """Hold the secret keys of VITRINA_SECRET_KEY. The first one seals, and all of them open."""

    def __init__(self, secrets: Sequence[bytes]) -> None:
        from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

        keys = [X25519PrivateKey.from_private_bytes(secret) for secret in secrets]
        self.public_keys = [key.public_key().public_bytes_raw() for key in keys]
        self._keys = {sealing.key_id(public): key for public, key in zip(self.public_keys, keys, strict=True)}

    def open(self, name: str, sealed: Sealed) -> str:
        """Return the URL. Raise `ConfigError` with the reason, which never contains the URL."""
        from cryptography.exceptions import InvalidTag
        from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PublicKey
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        key = self._keys.get(sealed.key_id)
        if key is None:
            raise ConfigError(
                f"connection {name!r} was sealed with the key {sealed.key_id}, which VITRINA_SECRET_KEY of this process"
                f" does not have ({', '.join(self._keys) or 'it is not set'}): give it that key too"
            )
        theirs, rest = sealed.box[:PUBLIC_KEY_BYTES], sealed.box[PUBLIC_KEY_BYTES:]
        nonce, text = rest[:NONCE_BYTES], rest[NONCE_BYTES:]
        try:
            shared = key.exchange(X25519PublicKey.from_public_bytes(theirs))
            secret = sealing.message_key(shared, theirs, key.public_key().public_bytes_raw())
            return AESGCM(secret).decrypt(nonce, text, sealing.associated(name, sealed.key_id)).decode()
        except (InvalidTag, ValueError):  # ValueError: too short to be a box, or not text
            raise ConfigError(
                f"connection {name!r} cannot be opened: what the metastore keeps of it was changed, or belongs to"
                f" another name; enter it again with `vitrina connections add {name} --replace`"
            ) from None
