"""GPUs of the ranks of a host: the words of ``--gpus`` (HVD_GPUS), and what a rank's process gets for them.

A shared leaf of the standard library: it is used before torch is imported, since CUDA reads its variable once.

Terms.
  choice   auto, all, none, or numbers of devices as in 0,1
  visible  the devices that CUDA shows to a process, numbered from 0: those of CUDA_VISIBLE_DEVICES where that is set
  turn     each rank of a host has the next of the visible devices; where ranks are more than devices they share

Every rank of a host sees the same devices, not its own alone: ranks open each other's memory, and Horovod's scripts say
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
"""Of CUDA_MODULE_LOADING: a kernel is loaded when it is first launched, not all of a library's with its first one."""
_NOTHING = "-1"  # as CUDA reads it; an empty value is lost on the way through some launchers
_DEVICES = Path("/dev")


def checked(text: str) -> str:
    """Return a choice as it travels.

    Raises
    ------
    ConfigError
        It is none; the message names what is wrong and what could be written.
    """
    words = entries(text) or [text]
    if words in (["auto"], ["all"], ["none"]):
        return words[0]
    if wrong := [word for word in words if not re.fullmatch(r"[0-9]{1,6}", word)]:
        raise ConfigError(f"--gpus {text}: {wrong[0]!r} is not a device number: write 0,1 or auto or all or none.")
    numbers = [str(int(word)) for word in words]
    if twice := [number for i, number in enumerate(numbers) if number in numbers[:i]]:
        raise ConfigError(
            f"--gpus {text}: device {twice[0]} is named twice: name it once. Ranks share devices by themselves where "
            "they are more than those."
        )
    return ",".join(numbers)


def numbers_of(choice: str) -> tuple[int, ...]:
    """Return the devices that a choice names; () where it names none."""
    return tuple(map(int, choice.split(","))) if choice[:1].isdecimal() else ()


def visible(env: Mapping[str, str]) -> list[str] | None:
    """Return the names that CUDA_VISIBLE_DEVICES shows, up to the first that is none, as CUDA does; None: not set."""
    if VISIBLE not in env:
        return None
    names = [name.strip() for name in env[VISIBLE].split(",")]
    end = next((i for i, name in enumerate(names) if not name or name.startswith("-")), len(names))
    return names[:end]


def count() -> int | None:
    """Return how many GPUs this host has; None where only CUDA could tell."""
    found = len(list(_DEVICES.glob("nvidia[0-9]*")))
    return found or (None if (_DEVICES / "dxg").exists() else 0)  # Windows lends its GPU to Linux under that name


def has_plugin() -> bool:
    """Tell whether the core was built for CUDA; looks for the file, loads nothing."""
    core = importlib.util.find_spec("hvd_kernel._native")
    return core is not None and core.origin is not None and Path(core.origin).with_name("libhvd_cuda.so").exists()


def usable(choice: str, env: Mapping[str, str]) -> int:
    """Return among how many devices the ranks of this host take turns, as far as that is known."""
    if choice == "none":
        return 0
    shown = visible(env) if choice != "all" else None
    return len(numbers_of(choice)) or ((count() or 0) if shown is None else len(shown))


def behind(others: int, there: int) -> str:
    """Return the choice of all devices for ranks that come after so many others: it begins where their turn ends.

    >>> behind(2, 4), behind(8, 4)
    ('2,3,0,1', 'auto')
    """
    first = others % there
    return ",".join(str((first + turn) % there) for turn in range(there)) if first else "auto"


def check_there(choice: str, env: Mapping[str, str]) -> None:
    """Refuse devices that this host has not.

    Raises
    ------
    ConfigError
        Naming the first of them, and those that are there.
    """
    shown = visible(env)
    there = count() if shown is None else len(shown)
    absent = [number for number in numbers_of(choice) if there is not None and number >= there]
    if absent:
        where = "on this host" if shown is None else f"among those of {VISIBLE}={env[VISIBLE]}"
        known = f"there are devices 0 to {there - 1}" if there else "there is no GPU"
        remedy = "name others, or auto" if there else "write --gpus none or leave it out"
        raise ConfigError(f"--gpus {choice}: device {absent[0]} is not there: {known} {where}; {remedy}.")


def settle(env: MutableMapping[str, str]) -> str:
    """Turn the choice in a rank's environment into what CUDA reads; return it.

    It is taken out: what the rank starts itself numbers the devices that the rank sees.

    Raises
    ------
    ConfigError
        The choice is none, or a device is not there.
    """
    choice = checked(env.pop(CHOICE, "") or "auto")
    check_there(choice, env)
    shown = visible(env)
    if choice == "all":
        env.pop(VISIBLE, None)
    elif choice == "none":
        env[VISIBLE] = _NOTHING
    elif numbers := numbers_of(choice):
        env[VISIBLE] = ",".join(str(n) if shown is None else shown[n] for n in numbers)
    return choice
