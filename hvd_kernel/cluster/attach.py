"""Session over a detached cluster: restore the state that an earlier kernel stored with the supervisor.

The stored state identifies the ranks; ranks that can answer are queried for everything else. A cell that still runs
becomes the session's latest cell, so that it can be watched, interrupted and waited for.
"""

from __future__ import annotations

import atexit
import socket
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from hvd_kernel.cluster.launcher import Supervised
from hvd_kernel.cluster.ranks.events import AttachRequested
from hvd_kernel.cluster.ranks.rank_table import restored
from hvd_kernel.cluster.requests.cell_execution import CellExecution
from hvd_kernel.cluster.session import Session
from hvd_kernel.diagnosis.post_mortem import UNKNOWN
from hvd_kernel.errors import ClusterError
from hvd_kernel.processes.channel import attachment, messages
from hvd_kernel.processes.channel.control_channel import ControlChannel, is_ready
from hvd_kernel.processes.detached import DetachedCluster
from hvd_kernel.protocol.messages import PROMPT_TYPE, Failure

_WELCOME_S = 10.0
_ANSWER_S = 10.0  # a living rank that takes longer counts as silent


class DetachedSupervisor(Supervised):
    """A detached cluster's supervisor that has admitted this kernel."""

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
    """Stop a detached cluster that no kernel uses.

    Raises
    ------
    ClusterError
        If a kernel uses it, or its supervisor does not answer.
    """
    DetachedSupervisor(cluster).stop()


def attach(cluster: DetachedCluster, say: Callable[[str], None]) -> Session:
    """Return a session over a detached cluster; its ``latest`` cell has the ranks that still run a cell.

    Raises
    ------
    ClusterError
        If another kernel uses it, or its supervisor does not answer.
    """
    supervisor = DetachedSupervisor(cluster)
    leave = supervisor.leave
    try:
        spec, ranks, causes = restored(supervisor.remembered, socket.gethostname())
        ranks.detached_name, ranks.spares = cluster.note.name, supervisor.warm
        session = Session(spec, supervisor, ranks)
        leave = session.leave  # closes its connections too
        session.executor.recorder.causes |= causes
        atexit.register(session.end)
        session.executor.connect(supervisor.client)
        _resume_cell(session, set(session.executor.call(AttachRequested, say=say)))
        for message in supervisor.more:
            session.executor.wire.soon(session.executor.handle, message)
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
    """Wait for admission; return the admitting message, and the messages received with it."""
    deadline = time.monotonic() + _WELCOME_S
    while is_ready(channel.fileno(), max(0.0, deadline - time.monotonic())):
        received = channel.receive()
        for at, message in enumerate(received):
            if isinstance(message, messages.Attached):
                return message, received[at + 1 :]
            if isinstance(message, messages.Refused):
                remedy = "restart or shut down that notebook's kernel, or `%hvd stop` there"
                raise ClusterError(f"{cluster.note.name} is used by kernel {message.kernel}: {remedy}")
            if isinstance(message, messages.ChannelClosed):
                raise ClusterError(f"{cluster.note.name} has just ended")
    pid = cluster.holder.partition(":")[0]
    remedy = f"`kill -CONT {pid}` wakes it, `kill -9 {pid}` ends the cluster"
    supervisor = f"the supervisor of {cluster.note.name} (process {pid})"
    raise ClusterError(f"{supervisor} does not answer: is it stopped? {remedy}")


def _resume_cell(session: Session, silent: set[int]) -> None:
    """Make the cell that ranks still run the session's latest cell."""
    wire, dead = session.executor.wire, set(session.dead)
    for rank in dead:
        session.executor.recorder.causes.setdefault(rank, UNKNOWN)
    reachable = [rank for rank in range(session.n) if rank not in silent | dead]
    answers = session.post("latest", reachable, urgent=True).wait_all(_ANSWER_S)
    states = {rank: answer for rank, answer in answers.items() if "error" not in answer}
    busy = {rank: state for rank, state in states.items() if state["busy"]}
    left = tuple(sorted({*busy, *silent, *set(reachable) - set(states)} - dead))
    execution = CellExecution(left, max((state["cell"] for state in states.values()), default=0), lambda _force: {})
    execution.aborted = any(state["broken"] for state in states.values()) or bool(dead)
    session.resume(execution, max((state["run"] for state in states.values()), default=0))
    wire.soon(wire.sinks.update, {state["request"]: (rank, execution) for rank, state in busy.items()})
    wire.request(list(busy), "hvd_request", {"handler": "latest"}, _OpenPrompts(execution), urgent=True)
    wire.request(left, "hvd_request", {"handler": "latest"}, _CellEnd(execution))


class _OpenPrompts:
    """A sink for the prompts that ranks opened while no kernel was connected.

    Queried again after the cell's own sinks are registered, which receive all later prompts: none is missed in between.
    """

    def __init__(self, execution: CellExecution) -> None:
        self._execution = execution

    def on_reply(self, rank: int, content: Mapping[str, Any], _buffers: list[Any]) -> bool:
        """Add the prompts to the cell."""
        for prompt in content.get("prompts", ()):
            self._execution.on_output(rank, PROMPT_TYPE, prompt)
        return True

    def on_output(self, _rank: int, _kind: str, _content: Mapping[str, Any]) -> bool:
        """Ignore the rank's publications."""
        return False

    def on_dead(self, rank: int, failure: Failure) -> None:
        """Do nothing: the cell's own sink records the death."""


class _CellEnd:
    """A sink for the end of cells that an earlier kernel began: ranks answer on the shell channel only after it.

    A rank's publications arrive in order: after the answer's own "idle" no output of the cell can arrive.
    """

    def __init__(self, execution: CellExecution) -> None:
        self._execution = execution

    def on_reply(self, rank: int, content: Mapping[str, Any], buffers: list[Any]) -> bool:
        """Record the outcome of the cell."""
        ended = content.get("ended") or {}
        return self._execution.on_reply(rank, {"hvd": {**ended, "aborted": content.get("broken")}}, buffers)

    def on_output(self, rank: int, kind: str, content: Mapping[str, Any]) -> bool:
        """Record that all output has arrived."""
        if kind == "status" and content["execution_state"] == "idle":
            return self._execution.on_silence(rank)
        return False

    def on_dead(self, rank: int, failure: Failure) -> None:
        """End the rank without its answer."""
        self._execution.on_dead(rank, failure)
