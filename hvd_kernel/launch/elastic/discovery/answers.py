"""Answers of host discovery, as text or as a mapping, to hosts with their slots. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hvd_kernel.errors import ConfigError
from hvd_kernel.launch.placement import Host, parse

_NONE = ":0"


def read(text: str, slots: int | None) -> tuple[Host, ...]:
    r"""Read what a script prints: lines ``host``, ``host:slots`` or ``[fe80::1]:slots``, in their order.

    Of a host that comes twice the last line counts, at the place of the first; one of 0 slots is none.

    Parameters
    ----------
    slots
        Of a host that does not say; None: 1.

    Raises
    ------
    ConfigError
        Naming the line that cannot be read.

    Examples
    --------
    >>> [(host.name, host.slots) for host in read("b:4\n\na\n", 2)]
    [('b', 4), ('a', 2)]
    """
    found: dict[str, int] = {}
    for number, line in enumerate(map(str.strip, text.splitlines()), 1):
        if not line:
            continue
        is_none = line.endswith(_NONE) and line.count(":") == 1
        try:
            [host] = parse(line.removesuffix(_NONE) if is_none else line, slots or 1)
        except (ConfigError, ValueError):
            raise ConfigError(
                f"line {number} is not a host with its slots: {line!r}; print host, host:4 or [fe80::1]:4."
            ) from None
        found[host.name] = 0 if is_none else host.slots
    return _hosts(found)


def checked(answer: Any) -> tuple[Host, ...]:
    """Return the hosts of a mapping from names to slots, in its order.

    Raises
    ------
    ConfigError
        It is none.
    """
    if not isinstance(answer, Mapping):
        raise ConfigError(f"find_available_hosts_and_slots() must return hosts with their slots, not {answer!r}.")
    for name, slots in answer.items():
        if not isinstance(name, str) or not isinstance(slots, int) or slots < 0:
            raise ConfigError(
                f"find_available_hosts_and_slots() must return slots of hosts, not {slots!r} of {name!r}."
            )
    return _hosts(answer)


def _hosts(found: Mapping[str, int]) -> tuple[Host, ...]:
    return tuple(Host(name, slots) for name, slots in found.items() if slots)
