"""``horovod.runner.common.util.secret``: keys, and digests of messages."""

from __future__ import annotations

import hmac
import secrets

SECRET_LENGTH = 32  # bytes
DIGEST_LENGTH = 32
HOROVOD_SECRET_KEY = "_HOROVOD_SECRET_KEY"  # noqa: S105 - a variable's name


def make_secret_key() -> bytes:
    """Return a new key."""
    return secrets.token_bytes(SECRET_LENGTH)


def compute_digest(key: bytes, message: bytes) -> bytes:
    """Return what proves that the sender knows the key."""
    return hmac.digest(key, message, "sha256")


def check_digest(key: bytes, message: bytes, digest: bytes) -> bool:
    """Tell whether the digest is the message's."""
    return hmac.compare_digest(compute_digest(key, message), digest)
