"""GPUs of the ranks of a host: the values of ``--gpus`` (HVD_GPUS), and the environment of a rank for each.

Needs only the standard library: it is used before torch is imported, since CUDA reads its variable once.

Terms.
  choice   auto, all, none, or numbers of devices as in 0,1
  visible  the devices that CUDA shows to a process, numbered from 0: those of CUDA_VISIBLE_DEVICES if it is set
  turn     the ranks of a host take the visible devices in turn; if there are more ranks than devices, they share

Every rank of a host sees the same devices, not only its own: ranks open each other's memory, and Horovod's scripts call
``torch.cuda.set_device(hvd.local_rank())``.
"""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Mapping, MutableMapping
from pathlib import Path

from hvd_kernel.errors import ConfigError
from hvd_kernel.settings.lists import entries

CHOICE = "HVD_GPUS"
VISIBLE = "CUDA_VISIBLE_DEVICES"
LOADING = "CUDA_MODULE_LOADING"
LAZY = "LAZY"
"""Value of CUDA_MODULE_LOADING: a kernel is loaded at its first launch, instead of all kernels of its library."""
_NOTHING = "-1"  # as CUDA reads it; some launchers drop an empty value
_DEVICES = Path("/dev")


def checked(text: str) -> str:
    """Return a choice in normal form.

    Raises
    ------
    ConfigError
        The text is not a choice; the message has the wrong part and the remedy.
    """
    words = entries(text) or [text]
    if words in (["auto"], ["all"], ["none"]):
        return words[0]
    if wrong := [word for word in words if not re.fullmatch(r"[0-9]{1,6}", word)]:
        raise ConfigError(f"--gpus {text}: {wrong[0]!r} is not a device number: write 0,1 or auto or all or none.")
    numbers = [str(int(word)) for word in words]
    if twice := [number for i, number in enumerate(numbers) if number in numbers[:i]]:
        raise ConfigError(
            f"--gpus {text}: device {twice[0]} is named twice: name it once. Ranks share devices automatically if "
            "there are more ranks than devices."
        )
    return ",".join(numbers)


def numbers_of(choice: str) -> tuple[int, ...]:
    """Return the devices that a choice names, if any."""
    return tuple(map(int, choice.split(","))) if choice[:1].isdecimal() else ()


def visible(env: Mapping[str, str]) -> list[str] | None:
    """Return the names in CUDA_VISIBLE_DEVICES up to the first invalid one, as CUDA does; None if it is not set."""
    if VISIBLE not in env:
        return None
    names = [name.strip() for name in env[VISIBLE].split(",")]
    end = next((i for i, name in enumerate(names) if not name or name.startswith("-")), len(names))
    return names[:end]


def count() -> int | None:
    """Return the number of GPUs of this host; None if only CUDA can determine it."""
    devices = len(list(_DEVICES.glob("nvidia[0-9]*")))
    return devices or (None if (_DEVICES / "dxg").exists() else 0)  # WSL exposes the GPU of Windows under that name


def has_plugin() -> bool:
    """Return whether the core was built for CUDA. Checks that the file exists, without loading it."""
    core = importlib.util.find_spec("hvd_kernel._native")
    return core is not None and core.origin is not None and Path(core.origin).with_name("libhvd_cuda.so").exists()


def usable(choice: str, env: Mapping[str, str]) -> int:
    """Return the number of devices that the ranks of this host share, as far as it is known."""
    if choice == "none":
        return 0
    shown = visible(env) if choice != "all" else None
    return len(numbers_of(choice)) or ((count() or 0) if shown is None else len(shown))


def starting_after(other_ranks: int, devices: int) -> str:
    """Return all devices as a choice for ranks that share them with other ranks: it starts after the other ranks' turn.

    >>> starting_after(2, 4), starting_after(8, 4)
    ('2,3,0,1', 'auto')
    """
    first = other_ranks % devices
    return ",".join(str((first + turn) % devices) for turn in range(devices)) if first else "auto"


def check_exist(choice: str, env: Mapping[str, str]) -> None:
    """Raise ConfigError if this host lacks a device of the choice.

    Raises
    ------
    ConfigError
        The message has the first missing device and the existing ones.
    """
    shown = visible(env)
    existing = count() if shown is None else len(shown)
    absent = [number for number in numbers_of(choice) if existing is not None and number >= existing]
    if absent:
        where = "on this host" if shown is None else f"among those of {VISIBLE}={env[VISIBLE]}"
        devices = f"there are devices 0 to {existing - 1}" if existing else "there is no GPU"
        remedy = "name others, or auto" if existing else "write --gpus none or leave it out"
        raise ConfigError(f"--gpus {choice}: device {absent[0]} is not there: {devices} {where}; {remedy}.")


def apply_choice(env: MutableMapping[str, str]) -> str:
    """Replace the choice in a rank's environment by CUDA's variable; return the choice.

    The choice is removed because processes that the rank starts number the devices that the rank sees.

    Raises
    ------
    ConfigError
        The choice is invalid, or a device does not exist.
    """
    choice = checked(env.pop(CHOICE, "") or "auto")
    check_exist(choice, env)
    shown = visible(env)
    if choice == "all":
        env.pop(VISIBLE, None)
    elif choice == "none":
        env[VISIBLE] = _NOTHING
    elif numbers := numbers_of(choice):
        env[VISIBLE] = ",".join(str(n) if shown is None else shown[n] for n in numbers)
    return choice
