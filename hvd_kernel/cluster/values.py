"""Python objects between notebook and ranks: pickle protocol 5, big arrays as raw buffers beside it.

Both ends are the same user's processes behind the cluster's encrypted, keyed channels; nothing is unpickled before.
"""

from __future__ import annotations

import io
import pickle
from typing import Any

from hvd_kernel.errors import ClusterError


def pack(values: dict[str, Any]) -> list[Any]:
    """Return the pickle and its out-of-band buffers, all of which support the buffer protocol.

    Raises
    ------
    ClusterError
        Naming the first value that cannot be pickled.
    """
    try:
        return _dump(values)
    except Exception:
        for name, value in values.items():
            try:
                _dump(value)
            except Exception as error:
                raise ClusterError(f"`{name}` ({type(value).__name__}) cannot be sent to the ranks: {error}") from error
        raise


def unpack(buffers: list[Any]) -> Any:
    """Return the object of ``pack``; arrays own writable memory."""
    head, *rest = buffers
    return pickle.loads(memoryview(head), buffers=[bytearray(memoryview(part)) for part in rest])  # noqa: S301


def _dump(value: Any) -> list[Any]:
    import cloudpickle  # noqa: PLC0415 - only when values travel

    parts: list[Any] = []
    head = io.BytesIO()
    cloudpickle.Pickler(head, protocol=5, buffer_callback=lambda part: parts.append(part.raw())).dump(value)
    return [head.getvalue(), *parts]
