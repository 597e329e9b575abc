"""Device of this rank: visible devices are set before a framework is imported, the rank's own is chosen later."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

from hvd_kernel.errors import ConfigError
from hvd_kernel.frameworks import registry
from hvd_kernel.settings import gpus

_ROCM = Path("/dev/kfd")  # of AMD's GPUs, which torch calls cuda, too
_requested: tuple[int, ...] = ()  # devices named by --gpus


def apply_choice() -> None:
    """Make the devices of ``--gpus`` visible to CUDA, or exit. Spares too: all ranks of a host see the same devices."""
    global _requested  # noqa: PLW0603 - of the process, as CUDA's own choice
    try:
        _requested = gpus.numbers_of(gpus.apply_choice(os.environ))
    except ConfigError as error:
        sys.exit(str(error))
    os.environ.setdefault(gpus.LOADING, gpus.LAZY)


def framework_decides() -> bool:
    """Return whether a framework may find a GPU here: then only the framework can determine this rank's device."""
    shown = gpus.visible(os.environ)
    return bool(_requested) or _ROCM.exists() or (gpus.count() != 0 and (shown is None or bool(shown)))


def device(package: str, local_rank: int) -> Any:
    """Return this rank's device in a framework's terms: the ranks take the visible GPUs in turn; else the CPU.

    Raises
    ------
    ConfigError
        Devices were requested that the framework does not see.
    """
    return registry.adapter(package).device(local_rank, _requested)


def described(device: Any) -> str:
    """Return the name of a device, with the host's number of it if CUDA's differs."""
    name = str(device)
    shown = gpus.visible(os.environ) or []
    number = int(name.removeprefix("cuda:")) if name.startswith("cuda:") else len(shown)
    return f"{name} (GPU {shown[number]})" if number < len(shown) and shown[number] != str(number) else name
