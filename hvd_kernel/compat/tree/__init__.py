"""What ``import horovod`` gives where we stand in for it. Its parts are found through the table in the finder."""

from __future__ import annotations

import importlib
from typing import Any

__version__ = "0.28.1"  # the release whose interface this is: programs compare it

_RUN = "hvd_kernel.launch.run"  # not imported before somebody asks: a rank has no use for a launcher


def __getattr__(name: str) -> Any:
    if name == "run":
        return importlib.import_module(_RUN).run
    raise AttributeError(f"module 'horovod' has no attribute {name!r}")
