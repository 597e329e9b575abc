"""``horovod.runner.common.util.codec``: objects as text."""

from __future__ import annotations

import base64
import pickle
from typing import Any

import cloudpickle


def dumps_base64(obj: Any, to_ascii: bool = True) -> str | bytes:
    """Return the object as text, or as bytes."""
    encoded = base64.b64encode(cloudpickle.dumps(obj, protocol=pickle.HIGHEST_PROTOCOL))
    return encoded.decode("ascii") if to_ascii else encoded


def loads_base64(encoded: str | bytes) -> Any:
    """Return the object: of text that this program has made itself, for unpickling runs what is in it."""
    return pickle.loads(base64.b64decode(encoded))  # noqa: S301 - as said
