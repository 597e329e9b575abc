"""torch's presence, looked at before anything here imports it: a sentence if it is missing."""

from __future__ import annotations

import importlib.util
import sys

from hvd_kernel.formatting.install_command import install_command

_PIP = install_command("torch")


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
