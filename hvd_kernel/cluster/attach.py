"""A session over a kept cluster: what this kernel has the supervisor remember, and how the next one goes on from it.

The ranks themselves are asked where they can answer; what was remembered tells who they were, and which of them to wait
for. A cell that still runs becomes the session's latest run, so that it can be watched, interrupted and waited for.

Words.
  silent   a rank whose process lives and that does not answer: stopped, or C code keeps Python's lock
"""
# ruff: noqa: SLF001 - a part of Session, in a file of its own

from __future__ import annotations

import atexit
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import msgspec

from hvd_kernel.cluster.ranks.status import RankStatus
from hvd_kernel.cluster.requests.cell_run import Run
from hvd_kernel.cluster.requests.gather import Handshake
from hvd_kernel.cluster.session import Session
from hvd_kernel.cluster.supervised import Supervised
from hvd_kernel.diagnosis.post_mortem import UNKNOWN
from hvd_kernel.errors import ClusterError
from hvd_kernel.processes.channel import attachment, messages
from hvd_kernel.processes.channel.control_channel import ControlChannel, is_ready
from hvd_kernel.processes.cluster_spec import ClusterSpec
from hvd_kernel.processes.detached import Kept
from hvd_kernel.processes.lifetime import mark
from hvd_kernel.protocol.messages import PROMPT_TYPE, Failure
from hvd_kernel.settings import lookup

_WELCOME_S = 10.0
_ANSWER_S = 10.0  # after it a rank that lives is silent
_HANDSHAKE_S = 0.1  # between two tries
_KEEP_S = 20.0


# What is remembered.


def keep(session: Session, name: str, place: str) -> None:
    """Have the supervisor outlive this kernel.

    Raises
    ------
    ClusterError
        It cannot, and why.
    """
    hours = float(lookup.value("HVD_KEEP_HOURS", os.environ))
    remember(session)
    session._launched.send(messages.Keep(name, place, session.n, hours))
    with session._changed:
        if not session._changed.wait_for(lambda: session.kept or session._unkept, _KEEP_S):
            raise ClusterError(f"the ranks' supervisor (process {session.supervisor}) does not answer: is it stopped?")
    if session._unkept:
        why, session._unkept = session._unkept, ""
        raise ClusterError(f"the ranks cannot be kept: {why}")


def remember(session: Session) -> None:
    """Tell the supervisor what the next kernel has to know."""
    ranks = {rank: asdict(who) | {"mark": mark(who.pid)} for rank, who in session._ranks.items()}
    known = {"spec": asdict(session.spec), "ranks": ranks, "here": sorted(session._here)}
    lost = {"dead": session.dead, "causes": session._witnesses.causes, "bare": sorted(session._bare)}
    session._launched.send(messages.Remember(known | lost | {"by_mpi": sorted(session._by_mpi)}))


# The way back.


class Found(Supervised):
    """A kept cluster's supervisor, when it has let this kernel in."""

    def __init__(self, kept: Kept) -> None:
        channel, pid = _connected(kept)
        try:
            attached, self.more = _attached(kept, channel)
            super().__init__(channel, pid, *map(Path, attached.folders))
        except BaseException:
            channel.close()
            raise
        self.client = attached.client
        self.remembered = attached.remembered
        self.warm = attached.spares


def end(kept: Kept) -> None:
    """End a kept cluster that no kernel has.

    Raises
    ------
    ClusterError
        A kernel has it, or its supervisor does not answer.
    """
    Found(kept).stop()


def attach(kept: Kept, say: Callable[[str], None]) -> Session:
    """Return a session over a kept cluster; its ``latest`` run has the ranks that still run a cell.

    Raises
    ------
    ClusterError
        Another kernel has it, or its supervisor does not answer.
    """
    found = Found(kept)
    try:
        session = Session(msgspec.convert(found.remembered["spec"], ClusterSpec), found)
        session.kept = kept.note.name
        atexit.register(session.end)
        _resume(session, found, say)
    except BaseException:
        found.leave()
        raise
    return session


def _connected(kept: Kept) -> tuple[ControlChannel, int]:
    try:
        return attachment.connect(kept.folder)
    except OSError as error:
        raise ClusterError(f"{kept.note.name} has just ended: nothing answers on its socket ({error})") from None


def _attached(kept: Kept, channel: ControlChannel) -> tuple[messages.Attached, list[messages.Message]]:
    """Wait to be let in; return the first message, and what came with it."""
    deadline = time.monotonic() + _WELCOME_S
    while is_ready(channel.fileno(), max(0.0, deadline - time.monotonic())):
        received = channel.receive()
        for at, message in enumerate(received):
            if isinstance(message, messages.Attached):
                return message, received[at + 1 :]
            if isinstance(message, messages.Refused):
                who = f"kernel {message.kernel}"
                remedy = "restart or shut down that notebook's kernel, or `%hvd stop` there"
                raise ClusterError(f"{kept.note.name} is used by {who}: {remedy}")
            if isinstance(message, messages.ChannelClosed):
                raise ClusterError(f"{kept.note.name} has just ended")
    pid = kept.holder.partition(":")[0]
    remedy = f"`kill -CONT {pid}` wakes it, `kill -9 {pid}` ends the cluster"
    raise ClusterError(f"the supervisor of {kept.note.name} (process {pid}) does not answer: is it stopped? {remedy}")


def _resume(session: Session, found: Found, say: Callable[[str], None]) -> None:
    memory = found.remembered
    marks = {int(rank): who.pop("mark") for rank, who in memory["ranks"].items()}
    session._ranks = {int(rank): RankStatus(**who) for rank, who in memory["ranks"].items()}
    session._here, session._by_mpi, session._bare = (set(memory[name]) for name in ("here", "by_mpi", "bare"))
    session._witnesses.causes |= {int(rank): why for rank, why in memory["causes"].items()}
    session.spares = found.warm
    session._connect(found.client)
    say("asking the ranks")
    session._dead |= {rank for rank in range(session.n) if rank not in session._wire.uuids}
    hands = _greet(session, marks)
    for rank, who in hands.introduced.items():
        session._ranks[rank] = replace(session._ranks[rank], pid=who["pid"], host=who["host"], device=who["device"])
    silent = hands.missing()
    session._dead |= {rank for rank in silent if _is_gone(session, rank, marks)}
    for rank in session.dead:
        session._witnesses.causes.setdefault(rank, UNKNOWN)
    for rank in sorted(session._here - session._dead):
        session._watch(rank, session._ranks[rank].pid)
    _go_on(session, silent - session._dead)
    session._at_work()
    session._wire.soon(session._handle, found.more)
    remember(session)


def _greet(session: Session, marks: Mapping[int, str]) -> Handshake:
    """Meet the ranks that answer; wait for those whose processes live."""
    living = [rank for rank in range(session.n) if rank not in session._dead]
    hands = Handshake(living, ["control"])
    deadline = time.monotonic() + _ANSWER_S
    while time.monotonic() < deadline:
        hands.greet(session._wire.request)
        if hands.wait(_HANDSHAKE_S) or all(_is_gone(session, rank, marks) for rank in hands.missing()):
            break
    return hands


def _is_gone(session: Session, rank: int, marks: Mapping[int, str]) -> bool:
    return rank in session._here and mark(session._ranks[rank].pid) != marks[rank]


def _go_on(session: Session, silent: set[int]) -> None:
    """Make what ranks still run the session's latest run."""
    asked = [rank for rank in range(session.n) if rank not in silent | session._dead]
    told = session.post("latest", asked, urgent=True).settle(_ANSWER_S)
    known = {rank: each for rank, each in told.items() if "error" not in each}
    busy = {rank: each for rank, each in known.items() if each["busy"]}
    left = tuple(sorted({*busy, *silent, *set(asked) - set(known)} - session._dead))
    session._runs = max((each["run"] for each in known.values()), default=0)
    run = Run(left, max((each["cell"] for each in known.values()), default=0), lambda _force: {})
    run.aborted = any(each["broken"] for each in known.values()) or bool(session._dead)
    session._latest = run
    session._wire.soon(session._wire.sinks.update, {each["request"]: (rank, run) for rank, each in busy.items()})
    session._wire.request(list(busy), "hvd_request", {"verb": "latest"}, _Asked(run), urgent=True)  # again: see there
    session._wire.request(left, "hvd_request", {"verb": "latest"}, _Left(run))


class _Asked:
    """A sink for prompts that ranks have asked before anybody heard; those that come from now on are heard."""

    def __init__(self, run: Run) -> None:
        self._run = run

    def on_reply(self, rank: int, content: Mapping[str, Any], _buffers: list[Any]) -> bool:
        """Take them into the run."""
        for prompt in content.get("prompts", ()):
            self._run.on_output(rank, PROMPT_TYPE, prompt)
        return True

    def on_output(self, _rank: int, _kind: str, _content: Mapping[str, Any]) -> bool:
        """Ignore what the rank publishes meanwhile."""
        return False

    def on_dead(self, rank: int, failure: Failure) -> None:
        """Leave it to the run's own sink."""


class _Left:
    """A sink for the end of cells that an earlier kernel has begun: after it ranks answer on the shell channel.

    What the rank publishes comes in order: after the answer's own "idle" nothing of the cell can come.
    """

    def __init__(self, run: Run) -> None:
        self._run = run

    def on_reply(self, rank: int, content: Mapping[str, Any], buffers: list[Any]) -> bool:
        """Take how the cell has ended."""
        ended = content.get("ended") or {}
        return self._run.on_reply(rank, {"hvd": {**ended, "aborted": content.get("broken")}}, buffers)

    def on_output(self, rank: int, kind: str, content: Mapping[str, Any]) -> bool:
        """Take note that everything has come."""
        if kind == "status" and content["execution_state"] == "idle":
            return self._run.on_silence(rank)
        return False

    def on_dead(self, rank: int, failure: Failure) -> None:
        """End the rank without its answer."""
        self._run.on_dead(rank, failure)
