"""torch's presence, looked at before anything here imports it: a sentence if it is missing."""

from __future__ import annotations

import importlib.util
import sys

_PIP = "pip install 'hvd-kernel[torch]'"


def check() -> None:
    """Refuse to go on without torch.

    Raises
    ------
    ModuleNotFoundError
        There is none.
    """
    if "torch" in sys.modules:
        there = sys.modules["torch"] is not None
    else:
        there = importlib.util.find_spec("torch") is not None
    if not there:
        raise ModuleNotFoundError(
            f"hvd_kernel.torch needs torch, which is not installed in this Python: {_PIP}", name="torch"
        )


check()
