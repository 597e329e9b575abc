"""``horovod.runner``: ``run`` starts ranks that call a function."""

from __future__ import annotations

from typing import Any

from hvd_kernel.compat import tree


def __getattr__(name: str) -> Any:
    if name == "run":
        return tree.__getattr__(name)
    raise AttributeError(f"module 'horovod.runner' has no attribute {name!r}")
