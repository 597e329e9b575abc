"""Error messages of the cluster: the problem of a rank or of the start, and the remedy."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

from hvd_kernel.diagnosis.post_mortem import UNKNOWN, Cause
from hvd_kernel.errors import ClusterError
from hvd_kernel.formatting.rank_labels import folded, rank_list
from hvd_kernel.protocol.messages import Failure

RESTART = "`%hvd restart` starts fresh ranks (their variables are gone)"
RESPAWN = f"`%hvd respawn` replaces the dead ranks with fresh ones; {RESTART}"
TAIL_LINES = 25
_CAUSES = 8  # of deaths, in a message
_NOISE = (
    "iopub_welcome",
    "heartbeat::",
    "new hearts",
    "frozen modules",
    "make the debugger miss",
    "to python to disable frozen",
    "Debugging will",
    "odls:",
    "hwloc:set on child",
    "to my local list",
    "local:launch",
    "data to launch job",
)


def unanswered(handler: str, missing: Collection[int], seconds: float, answers: Mapping[int, Mapping[str, Any]]) -> str:
    """Return the message for ranks that did not answer in time; other ranks' errors come first, as a likely cause."""
    errors = [f"rank {rank}: {answer['error']}; " for rank, answer in sorted(answers.items()) if "error" in answer]
    failed = "".join(errors[:_CAUSES]) + (f"{len(errors) - _CAUSES} more; " if len(errors) > _CAUSES else "")
    where = "where it is" if len(missing) == 1 else "where they are"
    return f"{handler}: {failed}no answer from {rank_list(missing)} within {seconds:g} s: `%hvd stacks` shows {where}"


def rank_died(rank: int, pid: int, host: str, cause: Cause, at: float) -> Failure:
    """Return the failure of a rank whose process has died, with the cause: other ranks' errors are its consequence."""
    where = f" (process {pid} on {host})" if pid else ""
    evalue = f"rank {rank}{where} died: {cause.text}; the variables of the other ranks are intact. {RESPAWN}."
    return Failure(rank, "RankDied", evalue, (f"RankDied: {evalue}", *cause.lines), at)


def replaced(rank: int) -> Failure:
    """Return the failure for requests to a rank that has died and is being replaced."""
    evalue = f"rank {rank} died and is being replaced"
    return Failure(rank, "RankDied", evalue, (f"RankDied: {evalue}",), time.monotonic())


def no_cluster() -> ClusterError:
    """Return the error for requests to a stopped cluster."""
    return ClusterError("the cluster is stopped: `%hvd start` starts a new one")


def all_dead(n: int) -> ClusterError:
    """Return the error for a cluster without a living rank to continue from."""
    subject = f"all {n} ranks are" if n > 1 else "the only rank is"
    return ClusterError(f"{subject} dead, so there is nothing to continue from. {RESTART}.")


def not_resizable(n: int, far: Iterable[int], engine: str = "") -> ClusterError:
    """Return the error for a resize with ranks on other hosts, or (``far`` is empty) with limits; name the remedy."""
    others = sorted(far)
    where = "runs on another host" if len(others) == 1 else "run on other hosts"
    held = f"{rank_list(others)} {where}, held by mpiexec, which adds no ranks"
    reason = held if others else "the ranks have limits"
    reason = f"{engine} was asked for all ranks at once, and none can be added or taken away" if engine else reason
    remedy = f"`%%hvdrun -np {n}` between cells starts all ranks again, with what hvd_kernel.keep has named"
    return ClusterError(f"{reason}: {remedy}")


def stopped(rank: int) -> Failure:
    """Return the failure of a rank that was stopped on purpose while it ran a cell."""
    evalue = "the ranks were stopped"
    return Failure(rank, "ClusterError", evalue, (f"ClusterError: {evalue}",), time.monotonic())


def dead_ranks(dead: Iterable[int], causes: Mapping[int, str]) -> ClusterError:
    """Return the error for a cell on a cluster with dead ranks."""
    lost = sorted(dead)
    by_cause: dict[str, list[int]] = {}
    for rank in lost:
        by_cause.setdefault(causes.get(rank, UNKNOWN), []).append(rank)
    groups = [f"{folded(ranks)} ({cause})" for cause, ranks in by_cause.items()]
    names = ", ".join(groups[:_CAUSES]) + (", ... (`%hvd status` shows all)" if len(groups) > _CAUSES else "")
    subject, verb = ("rank", "is") if len(lost) == 1 else ("ranks", "are")
    return ClusterError(
        f"{subject} {names} {verb} dead, so collectives cannot work. {RESPAWN}; "
        "until then `%hvdpull NAME --ranks ...` still fetches the other ranks' variables."
    )


def start_failed(reason: str, log: Path) -> ClusterError:
    """Return the error of a failed start: the reason, the end of the ranks' log, and a remedy derived from it."""
    tail = log_tail(log)
    hint = _remedy(tail)
    return ClusterError("\n".join(part for part in (reason, hint, tail and f"The ranks' last output:\n{tail}") if part))


def log_tail(log: Path, lines: int = TAIL_LINES) -> str:
    """Return the last lines of launcher, controller and ranks, without known harmless ones."""
    try:
        text = log.read_text(errors="replace")
    except OSError:
        return ""
    kept = [line for line in text.splitlines() if line.strip() and not any(noise in line for noise in _NOISE)]
    return "\n".join(kept[-lines:])


def _remedy(tail: str) -> str:
    for sign, remedy in _REMEDIES:
        if sign in tail:
            return remedy
    return ""


_REMEDIES = (
    (
        "No module named",
        "A module is missing on a rank: install it in the environment of this kernel, on every host.",
    ),
    ("not enough slots", "The hosts have fewer slots than ranks: give them more (-H host:8) or ask for fewer ranks."),
    ("ssh", "A host could not be reached: `ssh HOST true` must work without a password."),
    ("Cannot allocate memory", "The machine is out of memory: ask for fewer ranks."),
    ("Killed", "A rank was killed while it started, most often for memory: ask for fewer ranks."),
)
