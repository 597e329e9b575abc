"""Figures of elastic jobs: a rank killed, until the others' next step; the pause when ranks join."""

from __future__ import annotations

import tempfile
from pathlib import Path

import shared
from hvdtest.elastic_soak import Soak


def _times(kinds: dict[str, float], faults: int, cooldown: str) -> tuple[list[float], list[float]]:
    with tempfile.TemporaryDirectory() as folder:
        result = Soak(Path(folder), 7, kinds=kinds, cooldown=cooldown, whole=1.0).run(faults)
        assert result.same
        return result.after_kill_s, result.growth_s


def killed(times: int = 20) -> str:
    """Until the next step of the new generation, in which a fresh process has the slot of the killed one."""
    found, _ = _times({"kill": 1.0}, times, "")
    return shared.spread(found)


def killed_and_left(times: int = 20) -> str:
    """The same where the others go on without it, and a fresh process joins a second later; and that pause."""
    found, grown = _times({"kill": 1.0}, times, "1 1")
    return f"{shared.spread(found)}; pause when the fresh process joins {shared.spread(grown)}"


def grown(times: int = 20) -> str:
    """The pause of the steps when two ranks become four."""
    two, four = {"localhost": 2}, {"localhost": 2, "127.0.0.1": 2}
    with tempfile.TemporaryDirectory() as folder:
        return shared.spread(Soak(Path(folder), 7, hosts=two).move(two, *[four, two] * times).growth_s)
