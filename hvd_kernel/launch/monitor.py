"""Monitor of a running job: carries its output, notes how ranks end, and ends the others when one fails.

Terms.
  settle  the time between the first failure and the end of the others, in which the root cause may show itself
  taken   ranks that mpiexec has ended, or has had ended: such an end is no failure of theirs
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from hvd_kernel.errors import ClusterError
from hvd_kernel.formatting.rank_labels import rank_list
from hvd_kernel.launch.agents import AgentHandle, Agents
from hvd_kernel.launch.launchers.mpiexec import Mpiexec
from hvd_kernel.launch.line_output import OutputStream, Write
from hvd_kernel.launch.outcome import FailedRank, failed, is_consequence, root_cause
from hvd_kernel.launch.stdin import StdinForwarder
from hvd_kernel.launch.whereabouts import RankMonitor
from hvd_kernel.processes.channel import messages as m
from hvd_kernel.processes.event_loop import Timer
from hvd_kernel.protocol import elastic
from hvd_kernel.protocol.messages import MetricsSample, from_wire

_SETTLE_S = 0.5
_SEARCH_S = 10.0  # the same where all that is known is that some other rank has failed: it may be slow to end
_LOOK_S = 0.5  # between two looks at what has no time of its own
_TAIL = 25
_LINGER_S = 5.0  # that mpiexec may take to end when the ranks have
_LATE_S = 1.0  # until what the ranks' agents said last has come, when mpiexec is gone
_BY_SIGNAL = {-signal.SIGTERM, -signal.SIGKILL, 128 + signal.SIGTERM, 128 + signal.SIGKILL}


class JobMonitor:
    """Runs until every rank has ended. ``placed``: the agent of each rank."""

    def __init__(
        self,
        agents: Agents,
        outputs: Sequence[tuple[OutputStream, OutputStream]],
        placed: Sequence[AgentHandle],
        grace_s: float,
        mpiexec: Mpiexec | None = None,
        *,
        monitor: RankMonitor,
        on_sample: Callable[[MetricsSample], None],
    ) -> None:
        self.failures: list[FailedRank] = []
        self.codes: dict[int, int] = {}
        self.answers: dict[int, bytes] = {}  # to the job's call
        self._agents, self._outputs, self._placed, self._grace_s = agents, outputs, placed, grace_s
        self._mpiexec, self._monitor, self._on_sample = mpiexec, monitor, on_sample
        self._stdin = StdinForwarder(-1, placed[0], agents.loop)
        self._timers: dict[Callable[[], None], Timer] = {}
        self._taken: set[int] = set()
        self._released = False
        self._why: dict[int, str] = {}  # ranks that were killed for a limit
        self._first_failure = 0.0
        self._is_stopped = False
        agents.on_message = self.handle

    def run(self, stdin: int, timeout_s: float | None) -> None:
        """Carry everything until the last rank has ended.

        Raises
        ------
        ClusterError
            A host was lost, its ranks could not be started, mpiexec ended them, or the time is over.
        """
        self._stdin = StdinForwarder(stdin, self._placed[0], self._agents.loop)
        self._look()
        if timeout_s is not None:
            self._call_later(timeout_s, self._end_late)
        try:
            while not all(agent.gone for agent in self._agents.every):
                self._agents.loop.turn()
        finally:
            self._stdin.close()
            for timer in self._timers.values():
                timer.cancel()
        for output in (output for pair in self._outputs for output in pair):
            output.finish()
        self.failures = [replace(failure, words=self._outputs[failure.rank][1].tail) for failure in self.failures]
        if self._taken and not self.failures and not self._is_stopped:
            self._ask_mpiexec()

    def stop(self) -> None:
        """Have the ranks ended; ``run`` again to see them end."""
        self._stop(self._grace_s)

    def handle(self, agent: AgentHandle, message: m.Message) -> None:
        """Take a message of an agent."""
        if getattr(message, "rank", 0) != m.MPIEXEC:
            self._of_ranks(agent, message)
        elif isinstance(message, m.Output) and self._mpiexec is not None:
            calm = not self.failures and not self._is_stopped and not self._released
            self._mpiexec.receive(message.data, shown=calm)

    def _of_ranks(self, agent: AgentHandle, message: m.Message) -> None:
        match message:
            case m.ChannelClosed():
                self._gone(agent)
            case m.Output():
                self._outputs[message.rank][message.stream == "stderr"].write(message.data)
            case m.InputTaken():
                self._stdin.resume()
            case m.RankExited():
                self._exited(message.rank, message.status)
            case m.RankKilled() | m.Answered():
                self._note(message)
            case m.RankState() | m.RankSaid():
                self._said(message)
            case m.Flushed():
                self._release()
            case m.Terminated():
                self._taken |= {rank for rank, its in enumerate(self._placed) if its is agent}
            case m.StartFailed():
                self._stop(0.0)
                raise ClusterError(f"rank {message.rank} cannot be started on {agent.host.name}: {message.why}.")

    def _said(self, message: m.RankState | m.RankSaid) -> None:
        """Take what a rank tells of itself."""
        if isinstance(message, m.RankState):
            self._monitor.receive(message)
            self._look()
            return
        match elastic.from_worker(message.data):
            case elastic.Sampled(sample):
                self._on_sample(from_wire(MetricsSample, sample))
            case elastic.Stepped() as stepped:
                self._monitor.compare(message.rank, stepped)

    def _note(self, message: m.RankKilled | m.Answered) -> None:
        """Take what is told of a rank right before its end."""
        if isinstance(message, m.Answered):
            self.answers[message.rank] = message.data
        else:
            self._why[message.rank] = message.why

    def _call_later(self, seconds: float, callback: Callable[[], None]) -> None:
        """Call back after a time, and no more at the time that was said before."""
        if callback in self._timers:
            self._timers[callback].cancel()
        self._timers[callback] = self._agents.loop.call_later(seconds, callback)

    def _gone(self, agent: AgentHandle) -> None:
        missing = [rank for rank, its in enumerate(self._placed) if its is agent and rank not in self.codes]
        if missing and (loss := agent.lost()) is not None:
            self._stop(0.0)
            raise loss
        for rank in missing:
            if self._mpiexec is not None:
                self._taken.add(rank)
            else:
                self._why[rank] = agent.loss
            self._exited(rank, -signal.SIGKILL)
        if not agent.holds_ranks:
            self._expect_end_of_mpiexec(_LATE_S)
            if len(self.codes) == len(self._placed):
                self._release()

    def _ask_mpiexec(self) -> None:
        """Take the first failure from what mpiexec says, which ended the ranks: none is known to have failed."""
        assert self._mpiexec is not None
        rank, code = self._mpiexec.blamed()
        if rank is None or rank not in self.codes:
            raise self._mpiexec.ended()
        self.codes[rank] = code
        self.failures.append(FailedRank(rank, code, self._outputs[rank][1].tail))

    def _exited(self, rank: int, code: int) -> None:
        self.codes[rank] = code
        self._monitor.ended(rank)
        if code and not self._is_stopped and not (rank in self._taken and code in _BY_SIGNAL):
            out, err = self._outputs[rank]
            out.finish()
            err.finish()
            self._failed(FailedRank(rank, code, err.tail, self._why.get(rank, "")))
        if len(self.codes) == len(self._placed):
            self._expect_end_of_mpiexec(_LINGER_S)
            self._let_mpiexec_finish()

    def _failed(self, failure: FailedRank) -> None:
        self._first_failure = self._first_failure or time.monotonic()
        self.failures.append(failure)
        patience = _SEARCH_S if all(map(is_consequence, self.failures)) else _SETTLE_S
        self._call_later(self._first_failure + patience - time.monotonic(), self.stop)

    def _let_mpiexec_finish(self) -> None:
        """Let the agents go when all is heard that mpiexec has said before: what it says of their end is not theirs."""
        holders = [agent for agent in self._agents.every if not agent.holds_ranks and not agent.gone]
        for holder in holders:
            holder.send(m.Flush())
        if not holders:
            self._release()

    def _release(self) -> None:
        self._released = True
        for agent in self._agents.every:
            agent.release()

    def _expect_end_of_mpiexec(self, seconds: float) -> None:
        if self._mpiexec is not None:
            self._call_later(seconds, self._end_mpiexec)

    def _end_mpiexec(self) -> None:
        """End mpiexec, which has outlived its ranks, and what is left of the ranks, which have outlived mpiexec."""
        self._expect_end_of_mpiexec(_LINGER_S)
        for agent in self._agents.every:
            if not agent.holds_ranks:
                agent.send(m.Stop(0.0))
            elif not agent.gone:
                agent.hang_up()
                self._gone(agent)

    def _look(self) -> None:
        """Do what has no time of its own, now and then."""
        now = time.monotonic()
        for _, err in self._outputs:
            if not self.failures and err.overdue(now):
                err.release()
        self._call_later(min(self._monitor.tick(now), _LOOK_S), self._look)

    def _end_late(self) -> None:
        self._stop(0.0)
        said = [line for _, err in self._outputs for line in err.tail]
        last = " Their last output:\n" + "\n".join(said[-_TAIL:]) if said else ""
        raise ClusterError(f"the ranks did not end in time; all of them have been ended.{last}")

    def _stop(self, grace: float) -> None:
        self._is_stopped = True
        if self.stop in self._timers:
            self._timers.pop(self.stop).cancel()
        self._expect_end_of_mpiexec(grace + _LINGER_S)
        self._agents.stop(grace)

    def report_failure(self, write: Write, *, quiet: bool = False, first: int = 0) -> FailedRank | None:
        """Write the tracebacks that were kept back, equal ones once, the root cause's last; return the root cause.

        ``quiet``: whoever called tells of the failures himself, and none of it is written. ``first``: what the first of
        these ranks is called, where other launchers start those before it.
        """
        cause = root_cause(self.failures)
        if quiet:
            for failure in self.failures:
                self._outputs[failure.rank][1].forget()
            return cause
        if cause is None:
            for _, err in self._outputs:
                err.release()
            return None
        others = [failure for failure in self.failures if failure.rank != cause.rank]
        theirs = self._outputs[cause.rank][1].held
        alike = [failure.rank for failure in others if theirs and self._outputs[failure.rank][1].held == theirs]
        because = [failure.rank for failure in others if failure.rank not in alike and is_consequence(failure)]
        self._release_once(cause.rank, because)
        named = replace(cause, rank=cause.rank + first)
        write(sentence(named, [rank + first for rank in alike], [rank + first for rank in because]).encode())
        return cause

    def _release_once(self, cause: int, because: Sequence[int]) -> None:
        """Release what is held, the root cause's last; of what only reports that failure, each text once.

        A rank may have written the same text as the root cause and been ended before it could fail alike.
        """
        said: list[tuple[bytes, ...]] = []
        theirs = self._outputs[cause][1].held
        for rank, (_, err) in enumerate(self._outputs):
            if rank != cause and (err.held == theirs or (rank in because and err.held in said)):
                err.forget()
            elif rank != cause:
                said.append(err.held)
                err.release()
        self._outputs[cause][1].release()


def sentence(cause: FailedRank, alike: Sequence[int], because: Sequence[int]) -> str:
    """Return the last line of a job that failed."""
    more = "".join(
        f"; {rank_list(ranks)} failed {why}" for ranks, why in ((alike, "alike"), (because, "because of it")) if ranks
    )
    return f"hvdrun: rank {cause.rank} {failed(cause.code, cause.why)}{more}; all ranks have ended.\n"
