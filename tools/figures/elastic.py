"""Figures of elastic jobs: time from a kill to the others' next step, steps that remain, pause when ranks join."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from pathlib import Path

import sessions
from hvdtest.elastic_soak import Soak

_AT_ONCE = 2  # kills of a job before the other kind
_IMPORTS = "import torch, hvd_kernel.torch, torch._dynamo"


def _times(kinds: dict[str, float], faults: int, cooldown: str, spares: int = 0) -> tuple[list[float], list[float]]:
    with tempfile.TemporaryDirectory() as folder:
        result = Soak(Path(folder), 7, kinds=kinds, cooldown=cooldown, whole=1.0, spares=spares, warm=spares > 0).run(
            faults
        )
        assert result.same
        return result.after_kill_s, result.growth_s


def killed(times: int = 20) -> str:
    """Measure the time to the next step of the new generation, in which a cold process or a spare has the killed rank's slot.

    Alternates with the time of Python and the imports alone.
    """
    cold: list[float] = []
    warm: list[float] = []
    alone: list[float] = []
    for _ in range(0, times, _AT_ONCE):
        cold += _times({"kill": 1.0}, _AT_ONCE, "")[0]
        warm += _times({"kill": 1.0}, _AT_ONCE, "", spares=1)[0]
        begun = time.monotonic()
        subprocess.run([sys.executable, "-P", "-c", _IMPORTS], check=True)
        alone.append(time.monotonic() - begun)
    series = {"cold": cold, "with a spare": warm, "Python and imports alone": alone}
    return "; ".join(f"{name} {sessions.spread(seconds)}" for name, seconds in series.items())


def killed_and_left(times: int = 20) -> str:
    """Measure the same if the others continue without it and a new process joins a second later; and that pause."""
    after_kill, grown = _times({"kill": 1.0}, times, "1 1")
    return f"{sessions.spread(after_kill)}; pause when the new process joins {sessions.spread(grown)}"


def kept(minutes: float = 5.0, every_s: float = 30.0) -> str:
    """Measure the steps of a job that loses a rank every ``every_s`` seconds, against the same job without deaths.

    ``minutes`` with deaths and as many without, in two turns, for each strategy to replace a rank: by a spare, by a new
    process for which the others wait, by one that joins later.
    """
    laps = max(1, round(60 * minutes / every_s / 2))
    kills = [*[False] * (laps // 2), *[True] * laps, *[False] * laps, *[True] * laps, *[False] * (laps - laps // 2)]
    ways = {"with a spare": ("", 1), "cold": ("", 0), "the others go on": ("1 1", 0)}
    sentences = []
    for name, (cooldown, spares) in ways.items():
        with tempfile.TemporaryDirectory() as folder:
            soak = Soak(Path(folder), 7, cooldown=cooldown, spares=spares, warm=spares > 0)
            steps, result = soak.laps(every_s, kills)
            assert result.is_good, result.summary()
        per_s = steps[False] / (2 * laps * every_s)
        ranks = ", ".join(f"{size}: {count}" for size, count in sorted(result.sizes.items()))
        sentences.append(
            f"{name} {steps[True] / steps[False]:.1%} of {per_s:.1f} steps/s, {2 * laps} kills; "
            f"{sessions.spread(result.after_kill_s)}; steps by ranks {ranks}"
        )
    return ". ".join(sentences)


def grown(times: int = 20) -> str:
    """Measure the pause of the steps when two ranks become four."""
    two, four = {"localhost": 2}, {"localhost": 2, "127.0.0.1": 2}
    with tempfile.TemporaryDirectory() as folder:
        return sessions.spread(Soak(Path(folder), 7, hosts=two).move(two, *[four, two] * times).growth_s)
