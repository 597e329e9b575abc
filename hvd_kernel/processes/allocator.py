"""Memory allocator of ranks: glibc keeps what a training step has freed, for the next step.

By default glibc returns large blocks to Linux when they are freed, so each step pays a page fault for every 4 KiB of
its gradients and activations: for a model of 20 M parameters 16,000 faults, a quarter of the step's processor time.
The variables of this module apply to a process from its start; its memory is taken in huge pages where Linux allows it.

Sources: https://www.gnu.org/software/libc/manual/html_node/Memory-Allocation-Tunables.html,
https://man7.org/linux/man-pages/man3/malloc_trim.3.html.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from contextlib import suppress

from hvd_kernel.formatting.units import binary_size
from hvd_kernel.processes import limits
from hvd_kernel.settings import lookup

KEEP = "HVD_KEEP_MEMORY"
TUNABLES = "GLIBC_TUNABLES"
_CHOSEN = ("MALLOC_MMAP_MAX_", "MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_", "MALLOC_TOP_PAD_")
_OURS = "glibc.malloc"
_SHARE = 8  # all ranks of a host keep at most one part of its memory in so many
_GROW_BYTES = 64 << 20


def variables(env: Mapping[str, str], ranks: int, memory: int | None = None) -> dict[str, str]:
    """Return the variables with which a rank starts; none if the user has configured glibc's allocator.

    Parameters
    ----------
    env
        Variables of the rank.
    ranks
        Number of ranks on this host.
    memory
        Limit of the rank's memory, in bytes.

    Raises
    ------
    ConfigError
        HVD_KEEP_MEMORY has a value that cannot be used.

    Examples
    --------
    >>> variables({"HVD_KEEP_MEMORY": "0"}, 4)
    {}
    """
    kept = _kept_bytes(env, ranks, memory)
    tunables = env.get(TUNABLES, "")
    if kept == 0 or _OURS in tunables or any(name in env for name in _CHOSEN):
        return {}
    ours = {"mmap_max": 0, "trim_threshold": kept, "top_pad": min(kept, _GROW_BYTES), "hugetlb": 1}
    return {TUNABLES: ":".join([*filter(None, [tunables]), *(f"{_OURS}.{name}={n}" for name, n in ours.items())])}


def _kept_bytes(env: Mapping[str, str], ranks: int, memory: int | None = None) -> int:
    """Return the bytes of freed memory that a rank keeps at most; 0: as glibc does by default."""
    chosen = lookup.value(KEEP, env)
    if chosen != "auto":
        return int(chosen)
    share = limits.total_memory() // max(1, ranks) // _SHARE
    return share if memory is None else min(share, memory // _SHARE)


def sentence(env: Mapping[str, str]) -> str:
    """Return how much freed memory ranks of this host keep, for users."""
    if not variables(env, 1):
        return "freed memory is kept as glibc or your variables define it"
    kept = binary_size(_kept_bytes(env, 1))
    by_all = lookup.value(KEEP, env) == "auto"
    return f"for their next step ranks keep up to {kept} {'together' if by_all else 'each'} of what they free ({KEEP})"


def trim() -> None:
    """Return the freed memory of this process to Linux; with another C library than glibc, do nothing."""
    with suppress(AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
