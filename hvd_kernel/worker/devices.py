"""The device of this rank: what it may see is settled before a framework is imported, its turn among them later."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

from hvd_kernel.errors import ConfigError
from hvd_kernel.frameworks import registry
from hvd_kernel.settings import gpus

_ROCM = Path("/dev/kfd")  # of AMD's GPUs, which torch calls cuda, too
_named: tuple[int, ...] = ()  # the devices that --gpus has named


def settle() -> None:
    """Let CUDA see what ``--gpus`` says, or end. A spare does it too: all ranks of a host see the same."""
    global _named  # noqa: PLW0603 - of the process, as CUDA's own choice
    try:
        _named = gpus.numbers_of(gpus.apply_choice(os.environ))
    except ConfigError as error:
        sys.exit(str(error))
    os.environ.setdefault(gpus.LOADING, gpus.LAZY)


def framework_decides() -> bool:
    """Tell whether a framework may find a GPU here: then only it knows which device is this rank's."""
    shown = gpus.visible(os.environ)
    return bool(_named) or _ROCM.exists() or (gpus.count() != 0 and (shown is None or bool(shown)))


def device(package: str, local_rank: int) -> Any:
    """Return this rank's device, as a framework names it: its turn among the GPUs it can see, else the CPU.

    Raises
    ------
    ConfigError
        Devices were named, and the framework does not see them.
    """
    return registry.adapter(package).device(local_rank, _named)


def described(device: Any) -> str:
    """Return the device as people read it: with the host's own number of it, where CUDA numbers others."""
    name = str(device)
    shown = gpus.visible(os.environ) or []
    number = int(name.removeprefix("cuda:")) if name.startswith("cuda:") else len(shown)
    return f"{name} (GPU {shown[number]})" if number < len(shown) and shown[number] != str(number) else name
