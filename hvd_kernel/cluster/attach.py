"""A session over a detached cluster: how a kernel goes on from what an earlier one has had the supervisor remember.

The ranks themselves are asked where they can answer; what was remembered tells who they were, and which of them to wait
for. A cell that still runs becomes the session's latest run, so that it can be watched, interrupted and waited for.
"""

from __future__ import annotations

import atexit
import socket
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from hvd_kernel.cluster.ranks.events import AttachRequested
from hvd_kernel.cluster.ranks.remembered import restored
from hvd_kernel.cluster.requests.cell_run import CellRun
from hvd_kernel.cluster.session import Session
from hvd_kernel.cluster.supervised import Supervised
from hvd_kernel.diagnosis.post_mortem import UNKNOWN
from hvd_kernel.errors import ClusterError
from hvd_kernel.processes.channel import attachment, messages
from hvd_kernel.processes.channel.control_channel import ControlChannel, is_ready
from hvd_kernel.processes.detached import DetachedCluster
from hvd_kernel.protocol.messages import PROMPT_TYPE, Failure

_WELCOME_S = 10.0
_ANSWER_S = 10.0  # after it a rank that lives is silent


class Found(Supervised):
    """A detached cluster's supervisor, when it has let this kernel in."""

    def __init__(self, cluster: DetachedCluster) -> None:
        channel, pid = _connected(cluster)
        try:
            attached, self.more = _attached(cluster, channel)
            super().__init__(channel, pid, *map(Path, attached.folders))
        except BaseException:
            channel.close()
            raise
        self.client = attached.client
        self.remembered = attached.remembered
        self.warm = attached.spares


def end(cluster: DetachedCluster) -> None:
    """End a detached cluster that no kernel has.

    Raises
    ------
    ClusterError
        A kernel has it, or its supervisor does not answer.
    """
    Found(cluster).stop()


def attach(cluster: DetachedCluster, say: Callable[[str], None]) -> Session:
    """Return a session over a detached cluster; its ``latest`` run has the ranks that still run a cell.

    Raises
    ------
    ClusterError
        Another kernel has it, or its supervisor does not answer.
    """
    found = Found(cluster)
    leave = found.leave
    try:
        spec, ranks, causes = restored(found.remembered, socket.gethostname())
        ranks.detached_name, ranks.spares = cluster.note.name, found.warm
        session = Session(spec, found, ranks)
        leave = session.leave  # with its connections
        session.executor.recorder.causes |= causes
        atexit.register(session.end)
        session.executor.connect(found.client)
        _go_on(session, set(session.executor.call(AttachRequested, say=say)))
        for message in found.more:
            session.executor.wire.soon(session.executor.take, message)
        session.executor.remember()
    except BaseException:
        leave()
        raise
    return session


def _connected(cluster: DetachedCluster) -> tuple[ControlChannel, int]:
    try:
        return attachment.connect(cluster.folder)
    except OSError as error:
        raise ClusterError(f"{cluster.note.name} has just ended: nothing answers on its socket ({error})") from None


def _attached(cluster: DetachedCluster, channel: ControlChannel) -> tuple[messages.Attached, list[messages.Message]]:
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
                raise ClusterError(f"{cluster.note.name} is used by {who}: {remedy}")
            if isinstance(message, messages.ChannelClosed):
                raise ClusterError(f"{cluster.note.name} has just ended")
    pid = cluster.holder.partition(":")[0]
    remedy = f"`kill -CONT {pid}` wakes it, `kill -9 {pid}` ends the cluster"
    who = f"the supervisor of {cluster.note.name} (process {pid})"
    raise ClusterError(f"{who} does not answer: is it stopped? {remedy}")


def _go_on(session: Session, silent: set[int]) -> None:
    """Make what ranks still run the session's latest run."""
    wire, dead = session.executor.wire, set(session.dead)
    for rank in dead:
        session.executor.recorder.causes.setdefault(rank, UNKNOWN)
    asked = [rank for rank in range(session.n) if rank not in silent | dead]
    told = session.post("latest", asked, urgent=True).wait_all(_ANSWER_S)
    known = {rank: each for rank, each in told.items() if "error" not in each}
    busy = {rank: each for rank, each in known.items() if each["busy"]}
    left = tuple(sorted({*busy, *silent, *set(asked) - set(known)} - dead))
    run = CellRun(left, max((each["cell"] for each in known.values()), default=0), lambda _force: {})
    run.aborted = any(each["broken"] for each in known.values()) or bool(dead)
    session.resume(run, max((each["run"] for each in known.values()), default=0))
    wire.soon(wire.sinks.update, {each["request"]: (rank, run) for rank, each in busy.items()})
    wire.request(list(busy), "hvd_request", {"handler": "latest"}, _Asked(run), urgent=True)  # again: see there
    wire.request(left, "hvd_request", {"handler": "latest"}, _Left(run))


class _Asked:
    """Takes the prompts that ranks have opened while no kernel was connected; later ones come by themselves."""

    def __init__(self, run: CellRun) -> None:
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

    def __init__(self, run: CellRun) -> None:
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
