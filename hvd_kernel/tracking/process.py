"""The tracker of this process: made from HVD_TRACK when it is first asked for, or chosen later by ``%hvd track``.

Terms.
  run id  32 hexadecimal digits that all ranks of a job share: Polyaxon's own, the launcher's, or rank 0's, which ranks
          hear when they meet
  pinned  the run id is one that the others have too; else this process has made it
"""

from __future__ import annotations

import atexit
import os
import sys
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hvd_kernel.tracking import syntax
from hvd_kernel.tracking.polyaxon import folder_of, managed
from hvd_kernel.tracking.sink import Run
from hvd_kernel.tracking.sinks import Tracker, check
from hvd_kernel.tracking.syntax import Choice, Target

Env = Mapping[str, str]
TRACK, RUN = "HVD_TRACK", "HVD_TRACK_RUN"
_RANKS = ("HOROVOD_RANK", "OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "RANK")
_POLYAXON = "polyaxon"
OUTPUTS = "outputs"


def rank_of(env: Env) -> int:
    """Return this process's rank as a launcher says it in the environment; 0 without one."""
    slurm = ("SLURM_PROCID",) if "SLURM_STEP_ID" in env else ()  # a batch script has the first without the second
    return next((int(env[name]) for name in (*_RANKS, *slurm) if env.get(name, "").isdecimal()), 0)


def run_id_of(env: Env) -> str:
    """Return the run id that all ranks find in their environment; empty where there is none."""
    return env.get("POLYAXON_RUN_INSTANCE", "").rpartition(".")[2] or env.get(RUN, "")


def rank_environment(env: Env) -> dict[str, str]:
    """Return the variables that a launcher adds for all ranks of a job; refuse a HVD_TRACK that is none.

    Raises
    ------
    ConfigError
        HVD_TRACK is not understood.
    """
    syntax.parse(env.get(TRACK, ""))
    return {} if env.get(RUN) else {RUN: uuid.uuid4().hex}


@dataclass
class _State:
    """Of this process."""

    asked: bool = False  # whether HVD_TRACK was read, or something chosen
    tracker: Tracker | None = None  # of HVD_TRACK or `%hvd track`
    theirs: Tracker | None = None  # of a program that was written for Polyaxon
    run_id: str = ""
    pinned: bool = False
    watched: bool = False  # whether the end of the process closes it


_state = _State()
_rank: Callable[[], int] = lambda: rank_of(os.environ)  # noqa: E731 - replaced by know_rank


def know_rank(rank: Callable[[], int]) -> None:
    """Have the rank told by whoever knows it better than the environment."""
    global _rank  # noqa: PLW0603 - of the process
    _rank = rank


def rank() -> int:
    """Return this process's rank."""
    return _rank()


def tracker() -> Tracker | None:
    """Return what to write to; None where nothing is tracked.

    Raises
    ------
    ConfigError
        HVD_TRACK cannot be used, or lacks a package.
    """
    if not _state.asked:
        choose(os.environ.get(TRACK, ""))
    return _state.tracker


def choose(text: str, run_id: str = "") -> None:
    """Track there from now on, as a new run if ``run_id`` is new; what was tracked until now is closed.

    Raises
    ------
    ConfigError
        The text cannot be used: nothing has changed.
    """
    _use(syntax.parse(text), run_id)


def with_polyaxon() -> Tracker:
    """Return a tracker that has a Polyaxon sink, for programs that were written for Polyaxon.

    It is the one that ``tracker`` returns, or another: a program may call this on one rank, and ``hvd.log`` reduces
    where ``tracker`` is there, on all.
    """
    more = Target(_POLYAXON, syntax.PLACES[_POLYAXON])
    found = tracker() or _state.theirs
    if found is None or found.ended:
        found = _state.theirs = _opened(Choice((more,)))
    elif _polyaxon(found) is None:
        found.add(more)
    return found


def end(status: str = "") -> None:
    """Close what is tracked; without a status: failed where an exception ends this process.

    The chosen tracker stays, and writes nothing: this rank goes on to reduce with the others.
    """
    failed = getattr(sys, "last_value", None) is not None and "ipykernel" not in sys.modules
    for each in (_state.tracker, _state.theirs):
        if each is not None:
            each.end(status or ("failed" if failed else "succeeded"))


def run_id() -> str:
    """Return this run's id."""
    if not _state.run_id:
        found = run_id_of(os.environ)
        _state.run_id, _state.pinned = found or uuid.uuid4().hex, bool(found)
    return _state.run_id


def pin(agreed: str) -> None:
    """Take the run id that the ranks have agreed on."""
    _state.run_id, _state.pinned = agreed, True


def card() -> dict[str, Any]:
    """Return what ranks tell each other of the run when they meet."""
    return {"run": run_id(), "pinned": _state.pinned}


def agree(cards: Sequence[Mapping[str, Any]]) -> None:
    """Take the same run id as the others: a pinned one, for of old ranks and fresh ones the old ones have it."""
    pin(next((each["run"] for each in cards if each["pinned"]), cards[0]["run"]))


def outputs() -> Path:
    """Return the run's folder for the user's own files; the same on all ranks. It is there when this returns."""
    found = tracker() or _state.theirs
    target = None if found is None else _polyaxon(found)
    if target is None and not managed():
        folder = Path(OUTPUTS) / run_id()[:8]
    else:
        folder = folder_of(target.place if target else "", run_id()) / OUTPUTS
    folder.mkdir(parents=True, exist_ok=True)
    return folder.absolute()


def reset() -> None:
    """Forget everything: for tests."""
    global _state  # noqa: PLW0603 - of the process
    end("stopped")
    _state = _State(watched=_state.watched)


def _polyaxon(found: Tracker) -> Target | None:
    return next((each for each in found.choice.targets if each.kind == _POLYAXON), None)


def _use(choice: Choice, wanted: str = "") -> None:
    for target in choice.targets:
        check(target)
    end("succeeded")
    if wanted:
        pin(wanted)
    _state.asked, _state.theirs = True, None
    _state.tracker = _opened(choice) if choice.targets else None


def _opened(choice: Choice) -> Tracker:
    if not _state.watched:  # not before: what ends a rank of MPI at once was registered by then, and comes behind this
        _state.watched = True
        atexit.register(end)
    return Tracker(choice, Run(run_id()), lambda: rank() == 0)
