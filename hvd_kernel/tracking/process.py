"""The tracker of this process, created from HVD_TRACK at its first use, or by ``%hvd track``.

The notebook's side of ``%hvd track`` parses the arguments and sends the choice to the ranks.

Terms.
  run id  32 hexadecimal digits, the same on all ranks of a job: from Polyaxon, from the launcher, or from rank 0, which
          sends it at the rendezvous
  pinned  the run id is known to the other ranks; if not pinned, this process has generated it
  ask     function that calls a handler on ranks: ``ask(handler, ranks, content)`` returns the answers by rank
"""

from __future__ import annotations

import atexit
import os
import sys
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hvd_kernel.tracking import sink
from hvd_kernel.tracking.polyaxon import folder_of, managed
from hvd_kernel.tracking.sink import Choice, Run, Target, absolute, parse
from hvd_kernel.tracking.sinks import Tracker, check

Env = Mapping[str, str]
TRACK, RUN = "HVD_TRACK", "HVD_TRACK_RUN"
_RANKS = ("HOROVOD_RANK", "OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "RANK")
_POLYAXON = "polyaxon"
OUTPUTS = "outputs"


def rank_of(env: Env) -> int:
    """Return the rank from a launcher's variables, 0 if they are not set."""
    slurm = ("SLURM_PROCID",) if "SLURM_STEP_ID" in env else ()  # a batch script has only SLURM_PROCID
    return next((int(env[name]) for name in (*_RANKS, *slurm) if env.get(name, "").isdecimal()), 0)


def run_id_of(env: Env) -> str:
    """Return the run id in the environment of all ranks, or an empty string."""
    return env.get("POLYAXON_RUN_INSTANCE", "").rpartition(".")[2] or env.get(RUN, "")


def rank_environment(env: Env) -> dict[str, str]:
    """Check HVD_TRACK, and return the variables that a launcher sets for all ranks of a job.

    Raises
    ------
    ConfigError
        HVD_TRACK is invalid.
    """
    sink.parse(env.get(TRACK, ""))
    return {} if env.get(RUN) else {RUN: uuid.uuid4().hex}


@dataclass
class _State:
    """Tracking state of this process."""

    configured: bool = False  # by HVD_TRACK or `%hvd track`
    tracker: Tracker | None = None  # of HVD_TRACK or `%hvd track`
    of_polyaxon: Tracker | None = None  # of a program written for Polyaxon
    run_id: str = ""
    pinned: bool = False
    closes_at_exit: bool = False


_state = _State()
_rank: Callable[[], int] = lambda: rank_of(os.environ)  # noqa: E731 - replaced by know_rank


def know_rank(rank: Callable[[], int]) -> None:
    """Set the function that returns the rank, instead of the launcher's variables."""
    global _rank  # noqa: PLW0603 - of the process
    _rank = rank


def rank() -> int:
    """Return this process's rank."""
    return _rank()


def tracker() -> Tracker | None:
    """Return the tracker; None if nothing is tracked.

    Raises
    ------
    ConfigError
        HVD_TRACK is invalid, or a package is not installed.
    """
    if not _state.configured:
        choose(os.environ.get(TRACK, ""))
    return _state.tracker


def choose(text: str, run_id: str = "") -> None:
    """Close the current tracker and use these targets, as a new run if ``run_id`` is new.

    Raises
    ------
    ConfigError
        The text is invalid. The current tracker is kept.
    """
    _use(sink.parse(text), run_id)


def with_polyaxon() -> Tracker:
    """Return a tracker with a Polyaxon sink, for programs written for Polyaxon.

    If ``tracker`` returns None, this is a separate tracker: a program may call this on one rank only, while ``hvd.log``
    reduces values if ``tracker`` exists, on all ranks.
    """
    target = Target(_POLYAXON, sink.PLACES[_POLYAXON])
    current = tracker() or _state.of_polyaxon
    if current is None or current.ended:
        current = _state.of_polyaxon = _open(Choice((target,)))
    elif _polyaxon(current) is None:
        current.add(target)
    return current


def end(status: str = "") -> None:
    """Close the trackers; the default status is failed if an exception ends this process.

    The tracker remains set and writes nothing more: this rank still takes part in reductions.
    """
    failed = getattr(sys, "last_value", None) is not None and "ipykernel" not in sys.modules
    for current in (_state.tracker, _state.of_polyaxon):
        if current is not None:
            current.end(status or ("failed" if failed else "succeeded"))


def run_id() -> str:
    """Return this run's id."""
    if not _state.run_id:
        shared = run_id_of(os.environ)
        _state.run_id, _state.pinned = shared or uuid.uuid4().hex, bool(shared)
    return _state.run_id


def pin(agreed: str) -> None:
    """Set the run id that the ranks have agreed on."""
    _state.run_id, _state.pinned = agreed, True


def card() -> dict[str, Any]:
    """Return this rank's information about the run, which ranks exchange at the rendezvous."""
    return {"run": run_id(), "pinned": _state.pinned}


def agree(cards: Sequence[Mapping[str, Any]]) -> None:
    """Set the same run id on all ranks: a pinned one, which surviving ranks have, or that of rank 0."""
    pin(next((card["run"] for card in cards if card["pinned"]), cards[0]["run"]))


def outputs() -> Path:
    """Create and return the run's folder for the user's files, the same on all ranks."""
    current = tracker() or _state.of_polyaxon
    target = None if current is None else _polyaxon(current)
    if target is None and not managed():
        folder = Path(OUTPUTS) / run_id()[:8]
    else:
        folder = folder_of(target.place if target else "", run_id()) / OUTPUTS
    folder.mkdir(parents=True, exist_ok=True)
    return folder.absolute()


def reset() -> None:
    """Close the trackers and discard all state, for tests."""
    global _state  # noqa: PLW0603 - of the process
    end("stopped")
    _state = _State(closes_at_exit=_state.closes_at_exit)


def _polyaxon(tracker: Tracker) -> Target | None:
    return next((target for target in tracker.choice.targets if target.kind == _POLYAXON), None)


def _use(choice: Choice, run_id: str = "") -> None:
    for target in choice.targets:
        check(target)
    end("succeeded")
    if run_id:
        pin(run_id)
    _state.configured, _state.of_polyaxon = True, None
    _state.tracker = _open(choice) if choice.targets else None


def _open(choice: Choice) -> Tracker:
    if not _state.closes_at_exit:  # registered this late so that it runs before the handler that exits an MPI rank
        _state.closes_at_exit = True
        atexit.register(end)
    return Tracker(choice, Run(run_id()), lambda: rank() == 0)


COMMAND = "%hvd track"
Ask = Callable[[str, Sequence[int] | None, dict[str, Any]], Any]


def commanded(words: Sequence[str], folder: Path, *, per_rank: bool = False) -> Choice:
    """Parse the arguments; make all paths absolute, as a cell may change the ranks' working directory.

    Raises
    ------
    ConfigError
        An argument is invalid, or a package is not installed.
    """
    choice = parse(",".join(words), COMMAND)
    for target in choice.targets:
        check(target)
    return absolute(replace(choice, per_rank=choice.per_rank or per_rank), folder)


def start_run(ask: Ask, choice: Choice) -> str:
    """Start a new run with these targets on all ranks; return the messages of targets that failed immediately."""
    answers = ask("track", None, {"choice": str(choice), "run": uuid.uuid4().hex})
    return "".join(f"{text}\n" for content, _ in answers.values() for text in content["dropped"])


def copy_run(ask: Ask, n: int, fresh: Sequence[int]) -> None:
    """Copy the targets and the run of a surviving rank to new ranks: either all ranks reduce values, or none."""
    survivor = next((rank for rank in range(n) if rank not in fresh), None)
    if fresh and survivor is not None:
        content, _ = ask("track", [survivor], {})[survivor]
        ask("track", fresh, {"choice": content["choice"], "run": content["run"]})


def sentence(choice: Choice) -> str:
    """Return a sentence about what is tracked."""
    if not choice.targets:
        return "nothing is tracked\n"
    also = ", and every rank's own as name/rank_N" if choice.per_rank else ""
    places = ", ".join(map(str, choice.targets))
    return f"hvd.log goes to {places}: the mean over the ranks{also}; every rank has to call it\n"
