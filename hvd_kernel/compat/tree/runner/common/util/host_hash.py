"""``horovod.runner.common.util.host_hash``: a name that processes share which can share memory."""

from __future__ import annotations

import hashlib
import importlib
import socket


def host_hash(salt: str | None = None) -> str:
    """Return the host's short name and a digest of what tells it, or this container, from others."""
    machine = importlib.import_module("hvd_kernel.settings.network").machine()
    told = "-".join([machine, *([] if salt is None else [salt])])
    return f"{socket.gethostname().partition('.')[0]}-{hashlib.sha256(told.encode()).hexdigest()[:32]}"
