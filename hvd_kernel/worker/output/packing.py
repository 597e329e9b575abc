"""Messages of this rank as bytes: text that no wire takes, which Python's strings may hold, does not keep one back."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from jupyter_client.jsonutil import json_clean, json_default

from hvd_kernel.worker.output.capture import encoded

Pack = Callable[[Any], bytes]


def packing(plain: Pack) -> Pack:
    """Return what packs as ``plain`` does, and also halves of characters, as U+FFFD."""

    def pack(message: Any) -> bytes:
        try:
            return plain(message)
        except UnicodeEncodeError:
            text = json.dumps(json_clean(message), default=json_default, ensure_ascii=False, allow_nan=False)
            return encoded(text)

    return pack
