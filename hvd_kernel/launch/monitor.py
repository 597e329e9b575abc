"""Monitor of a running job: forwards its output, records the exits of ranks, and stops the others when one fails.

Terms.
  settling time   from the first failure until the others are stopped: the root cause may be reported in it
  ended by MPI    ranks that mpiexec has killed or terminated: their exit by a signal is not a failure of theirs
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any, Protocol

from hvd_kernel.diagnosis.inquiry import c_functions, python_calls
from hvd_kernel.diagnosis.stall import JobStalls
from hvd_kernel.diagnosis.training_apart import TrainingApart
from hvd_kernel.errors import ClusterError
from hvd_kernel.formatting.rank_labels import rank_list
from hvd_kernel.jobs.grace import GracePeriod
from hvd_kernel.launch.agents import AgentHandle, Agents, silent_loss_error
from hvd_kernel.launch.cancellation import Cancellation, JobCancelled
from hvd_kernel.launch.exit_report import RankExit, now
from hvd_kernel.launch.forwarding import StdinForwarder
from hvd_kernel.launch.launchers.mpi import Mpiexec
from hvd_kernel.launch.line_output import OutputStream
from hvd_kernel.launch.outcome import FailedRank, failed, is_consequence, root_cause
from hvd_kernel.launch.output_sinks import Write
from hvd_kernel.processes.channel import messages as m
from hvd_kernel.processes.channel.messages import Message, QueryRank, RankState
from hvd_kernel.processes.event_loop import Timer
from hvd_kernel.processes.rank_channel import decode
from hvd_kernel.protocol import elastic
from hvd_kernel.protocol.elastic import Stepped
from hvd_kernel.protocol.messages import MetricsSample, Whereabouts, from_content

_SETTLE_S = 0.5
_SEARCH_S = 10.0  # the same while all failures are consequences: the rank that failed first may exit slowly
_HOUSEKEEPING_S = 0.5  # longest time between two checks without a timer of their own
_TAIL = 25
_LINGER_S = 5.0  # time for mpiexec and for remote agents to exit after the ranks
_ANSWER_S = 5.0  # time for remote agents to respond after a failure that another one has caused
_LATE_S = 1.0  # time for the last messages of the ranks' agents after mpiexec is gone
_BY_SIGTERM = {-signal.SIGTERM, 128 + signal.SIGTERM}
_BY_SIGNAL = _BY_SIGTERM | {-signal.SIGKILL, 128 + signal.SIGKILL}


class JobMonitor:
    """Runs until every rank has exited. ``rank_agents``: the agent of each rank."""

    def __init__(
        self,
        agents: Agents,
        outputs: Sequence[tuple[OutputStream, OutputStream]],
        rank_agents: Sequence[AgentHandle],
        grace: GracePeriod,
        mpiexec: Mpiexec | None = None,
        *,
        monitor: RankMonitor,
        on_sample: Callable[[MetricsSample], None],
    ) -> None:
        self.failures: list[FailedRank] = []
        self.codes: dict[int, int] = {}
        self.answers: dict[int, bytes] = {}  # to the job's call
        self._pids: dict[int, int] = {}
        self._ended: dict[int, str] = {}  # when each rank has ended
        self._agents, self._outputs, self._rank_agents, self._grace = agents, outputs, rank_agents, grace
        self.cancellation = Cancellation(self._terminate, partial(self._stop, 0.0))
        self._mpiexec, self._monitor, self._on_sample = mpiexec, monitor, on_sample
        self._stdin = StdinForwarder(-1, rank_agents[0], agents.loop)
        self._timers: dict[Callable[[], None], Timer] = {}
        self._ended_by_mpi: set[int] = set()
        self._released = False
        self._reasons: dict[int, str] = {}  # of ranks that were killed for a limit
        self._first_failure = 0.0
        self._is_stopped = False
        self._loss: ClusterError | None = None  # of a host
        self._unanswered: list[AgentHandle] = []  # hosts that have not responded to a check
        agents.on_message = self.handle

    def run(self, stdin: int, timeout_s: float | None) -> None:
        """Run the loop until the last rank has exited.

        Raises
        ------
        ClusterError
            A host was lost, its ranks could not be started, mpiexec ended them, or the time is over.
        """
        self._stdin = StdinForwarder(stdin, self._rank_agents[0], self._agents.loop)
        self._keep_house()
        if timeout_s is not None:
            self._call_later(timeout_s, self._timed_out)
        try:
            while not all(agent.gone for agent in self._agents.every):
                self._agents.loop.turn()
        finally:
            self._stdin.close()
            for timer in self._timers.values():
                timer.cancel()
        self._raise_loss()
        for output in (output for pair in self._outputs for output in pair):
            output.finish()
        self.failures = [replace(failure, tail=self._outputs[failure.rank][1].tail) for failure in self.failures]
        if self._ended_by_mpi and not self.failures and not self._is_stopped:
            self._adopt_failure_of_mpiexec()

    def stop(self) -> None:
        """Stop the ranks; call ``run`` again to wait for their exit."""
        self._stop(self._grace.after_failure_s)

    def _terminate(self) -> None:
        """Stop the ranks, which a signal has cancelled; forget the failures of those that it has reached itself."""
        others = [failure for failure in self.failures if failure.code not in _BY_SIGTERM]
        if all(map(is_consequence, others)):
            self.failures = []
        self._stop(self._grace.cancelled_s)

    def handle(self, agent: AgentHandle, message: m.Message) -> None:
        """Handle a message of an agent."""
        if getattr(message, "rank", 0) != m.MPIEXEC:
            self._handle_of_ranks(agent, message)
        elif isinstance(message, m.Output) and self._mpiexec is not None:
            shown = not self.failures and not self._is_stopped and not self._released
            self._mpiexec.receive(message.data, shown=shown)

    def _handle_of_ranks(self, agent: AgentHandle, message: m.Message) -> None:
        match message:
            case m.ChannelClosed():
                self._on_agent_gone(agent)
            case m.Output():
                self._outputs[message.rank][message.stream == "stderr"].write(message.data)
            case m.InputTaken():
                self._stdin.resume()
            case m.RankExited():
                self._on_exit(message.rank, message.status)
            case m.RankKilled() | m.Answered() | m.RankStarted():
                self._record(message)
            case m.Terminated():
                self._on_terminated(agent, message)
            case m.RankState() | m.FromRank():
                self._on_report(message)
            case m.Flushed():
                self._on_flushed(agent)
            case m.StartFailed():
                self._stop(0.0)
                raise ClusterError(f"rank {message.rank} cannot be started on {agent.host.name}: {message.reason}.")

    def _on_terminated(self, agent: AgentHandle, message: m.Terminated) -> None:
        if self._mpiexec is not None and agent.holds_ranks:
            self._ended_by_mpi |= {rank for rank, other in enumerate(self._rank_agents) if other is agent}
        elif message.again:
            self.cancellation.kill()
        else:
            self.cancellation.on_signal(message.number, agent.host.name)

    def _on_report(self, message: m.RankState | m.FromRank) -> None:
        """Handle the state or the telemetry of a rank."""
        if isinstance(message, m.RankState):
            self._monitor.receive(message)
            self._keep_house()
            return
        match elastic.from_worker(message.data):
            case elastic.Sampled(sample):
                self._on_sample(sample)
            case elastic.Stepped() as stepped:
                self._monitor.compare(message.rank, stepped)

    def _record(self, message: m.RankKilled | m.Answered | m.RankStarted) -> None:
        """Record what is reported with a rank's exit."""
        match message:
            case m.Answered():
                self.answers[message.rank] = message.data
            case m.RankStarted():
                self._pids[message.rank] = message.pid
            case m.RankKilled():
                self._reasons[message.rank] = message.reason

    def _call_later(self, seconds: float, callback: Callable[[], None]) -> None:
        """Schedule a call in place of an earlier one of the same function."""
        if callback in self._timers:
            self._timers[callback].cancel()
        self._timers[callback] = self._agents.loop.call_later(seconds, callback)

    def _on_agent_gone(self, agent: AgentHandle) -> None:
        missing = self._missing(agent)
        if missing and not self._is_explained and (loss := agent.lost()) is not None:
            self._on_loss(agent, loss)
            return
        for rank in missing:
            if self._mpiexec is not None:
                self._ended_by_mpi.add(rank)
            else:
                self._reasons[rank] = agent.loss
            self._on_exit(rank, -signal.SIGKILL)
        if not agent.holds_ranks:
            self._expect_exit_of_mpiexec(_LATE_S)
            if len(self.codes) == len(self._rank_agents):
                self._release()

    def _missing(self, agent: AgentHandle) -> list[int]:
        """Return the ranks of an agent that have not exited."""
        return [rank for rank, other in enumerate(self._rank_agents) if other is agent and rank not in self.codes]

    @property
    def _is_explained(self) -> bool:
        """True if the end of the job has a cause: a signal, or a failure that is not a consequence."""
        return bool(self.cancellation.number) or not all(map(is_consequence, self.failures))

    def _on_loss(self, agent: AgentHandle, loss: ClusterError) -> None:
        """End the job for a lost host, unless a signal that cancels it, and may have ended the agent, arrives soon."""
        for rank in self._missing(agent):
            self._reasons[rank] = str(loss)
            self._record_exit(rank, -signal.SIGKILL)
        self._loss = self._loss or loss
        self._call_later(_SETTLE_S, self._raise_loss)

    def _raise_loss(self) -> None:
        if self._loss is not None and not self._is_explained:
            self._stop(0.0)
            raise self._loss

    def _find_silent_hosts(self) -> None:
        """Check that the other hosts respond: the failures so far only report the end of other ranks."""
        self._unanswered = [agent for agent in self._agents.every if agent.remote and self._missing(agent)]
        for agent in self._unanswered:
            agent.send(m.Flush())
        self._call_later(_ANSWER_S, self._lose_silent_hosts)

    def _on_flushed(self, agent: AgentHandle) -> None:
        """Handle that an agent responds: the one of mpiexec, whose output has arrived, or one that was checked."""
        if not agent.holds_ranks:
            self._release()
        elif agent in self._unanswered:
            self._unanswered.remove(agent)

    def _lose_silent_hosts(self) -> None:
        for agent in self._unanswered:
            if self._missing(agent) and not self._is_explained:
                self._on_loss(agent, silent_loss_error(agent.host.name))
                agent.abandon()

    def _abandon(self) -> None:
        """Disconnect from hosts that do not report the end of their ranks."""
        for agent in self._agents.every:
            if agent.holds_ranks and not agent.gone:
                agent.abandon()

    def _adopt_failure_of_mpiexec(self) -> None:
        """Record the failure that mpiexec reports: it has ended the ranks, none of which is known to have failed."""
        assert self._mpiexec is not None
        rank, code = self._mpiexec.first_failure()
        if rank is None or rank not in self.codes:
            raise self._mpiexec.spurious_end_error()
        self.codes[rank] = code
        self.failures.append(FailedRank(rank, code, self._outputs[rank][1].tail))

    def _on_exit(self, rank: int, code: int) -> None:
        self._record_exit(rank, code)
        if code and not self._is_stopped and not (rank in self._ended_by_mpi and code in _BY_SIGNAL):
            out, err = self._outputs[rank]
            out.finish()
            err.finish()
            self._on_failure(FailedRank(rank, code, err.tail, self._reasons.get(rank, "")))
        if len(self.codes) == len(self._rank_agents):
            self._expect_exit_of_mpiexec(_LINGER_S)
            self._flush_mpiexec()

    def _record_exit(self, rank: int, code: int) -> None:
        self.codes[rank] = code
        self._ended[rank] = now()
        self._monitor.on_exit(rank)

    def exits(self, first: int = 0) -> list[RankExit]:
        """Return the exits of all ranks; ``first``: the number of the first of these ranks."""
        return [self.exit_of(rank, first) for rank in range(len(self._rank_agents))]

    def exit_of(self, rank: int, first: int = 0) -> RankExit:
        """Return the exit of a rank."""
        agent, code = self._rank_agents[rank], self.codes.get(rank)
        tail = self._outputs[rank][1].tail
        return RankExit(
            rank + first,
            agent.title,
            self._pids.get(rank),
            code,
            self._ended.get(rank),
            self._reasons.get(rank, ""),
            code is not None and is_consequence(FailedRank(rank, code, tail)),
        )

    def _on_failure(self, failure: FailedRank) -> None:
        self._first_failure = self._first_failure or time.monotonic()
        self.failures.append(failure)
        patience = _SEARCH_S if all(map(is_consequence, self.failures)) else _SETTLE_S
        self._call_later(self._first_failure + patience - time.monotonic(), self.stop)
        if not self._is_explained and len(self.failures) == 1:
            self._find_silent_hosts()

    def _flush_mpiexec(self) -> None:
        """Release the agents when mpiexec's output so far has arrived: its output about their exit is not shown."""
        holders = [agent for agent in self._agents.every if not agent.holds_ranks and not agent.gone]
        for holder in holders:
            holder.send(m.Flush())
        if not holders:
            self._release()

    def _release(self) -> None:
        self._released = True
        for agent in self._agents.every:
            agent.release()

    def _expect_exit_of_mpiexec(self, seconds: float) -> None:
        if self._mpiexec is not None:
            self._call_later(seconds, self._stop_mpiexec)

    def _stop_mpiexec(self) -> None:
        """Stop mpiexec if it has outlived its ranks, and the ranks that have outlived mpiexec."""
        self._expect_exit_of_mpiexec(_LINGER_S)
        for agent in self._agents.every:
            if not agent.holds_ranks:
                agent.send(m.Stop(0.0))
            elif not agent.gone:
                agent.hang_up()
                self._on_agent_gone(agent)

    def _keep_house(self) -> None:
        """Release overdue output and run the stall monitor; schedule the next time."""
        now = time.monotonic()
        for _, err in self._outputs:
            if not self.failures and err.overdue(now):
                err.release()
        self._call_later(min(self._monitor.tick(now), _HOUSEKEEPING_S), self._keep_house)

    def _timed_out(self) -> None:
        self._stop(0.0)
        lines = [line for _, err in self._outputs for line in err.tail]
        last = " Their last output:\n" + "\n".join(lines[-_TAIL:]) if lines else ""
        raise ClusterError(f"the ranks did not end in time; all of them have been ended.{last}")

    def _stop(self, grace: float) -> None:
        self._is_stopped = True
        if self.stop in self._timers:
            self._timers.pop(self.stop).cancel()
        self._expect_exit_of_mpiexec(grace + _LINGER_S)
        self._call_later(grace + _LINGER_S, self._abandon)
        self._agents.stop(grace)

    def cancelled_error(self, first: int = 0) -> JobCancelled | None:
        """Return the error of a job that a signal has cancelled before any rank had failed, else None.

        The held tracebacks are written, except those that only report the end of other ranks. ``first``: the number of
        the first of these ranks.
        """
        signalled = self.cancellation
        if not signalled.number or self.failures:
            return None
        for rank, (_, err) in enumerate(self._outputs):
            if is_consequence(FailedRank(rank, self.codes[rank], err.tail)):
                err.forget()
            err.release()
        killed = [rank + first for rank, code in sorted(self.codes.items()) if code == -signal.SIGKILL]
        return signalled.error(killed, self._grace.cancelled_s)

    def report_failure(self, write: Write, *, quiet: bool = False, first: int = 0) -> FailedRank | None:
        """Write the held tracebacks, equal ones once, the root cause's last; return the root cause.

        ``quiet``: write nothing, because the caller reports the failures. ``first``: the number of the first of these
        ranks, if other launchers start those before it.
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
        traceback = self._outputs[cause.rank][1].held
        alike = [failure.rank for failure in others if traceback and self._outputs[failure.rank][1].held == traceback]
        because = [failure.rank for failure in others if failure.rank not in alike and is_consequence(failure)]
        self._release_once(cause.rank, because)
        numbered = replace(cause, rank=cause.rank + first)
        write(sentence(numbered, [rank + first for rank in alike], [rank + first for rank in because]).encode())
        return cause

    def _release_once(self, cause: int, because: Sequence[int]) -> None:
        """Release the held tracebacks, the root cause's last; equal ones of ranks that only report it once.

        A rank may have written the same text as the root cause and been stopped before it could fail alike.
        """
        written: list[tuple[bytes, ...]] = []
        traceback = self._outputs[cause][1].held
        for rank, (_, err) in enumerate(self._outputs):
            if rank != cause and (err.held == traceback or (rank in because and err.held in written)):
                err.forget()
            elif rank != cause:
                written.append(err.held)
                err.release()
        self._outputs[cause][1].release()


def sentence(cause: FailedRank, alike: Sequence[int], because: Sequence[int]) -> str:
    """Return the last line of a job that failed."""
    others = "".join(
        f"; {rank_list(ranks)} failed {reason}"
        for ranks, reason in ((alike, "alike"), (because, "because of it"))
        if ranks
    )
    return f"hvdrun: rank {cause.rank} {failed(cause.code, cause.reason)}{others}; all ranks have ended.\n"


# Stalls and stacks


_PREFIX = "hvdrun: "


class QueryableAgent(Protocol):
    """An agent, which forwards a query to a rank."""

    def send(self, message: Message) -> None:
        """Send it a message."""


class RankMonitor:
    """Queries the ranks through their agents, and reports stalls and stacks on the launcher's stderr."""

    def __init__(self, agents: Sequence[QueryableAgent], first: int, size: int, write: Write, *, watches: bool) -> None:
        """Start monitoring. ``agents``: one per rank; ``first``: the number of the first rank."""
        self._agents, self._first, self._write = agents, first, write
        ranks = range(first, first + len(agents))
        self._stalls = JobStalls(ranks, size, self._query, self._report, watches=watches)
        self._apart = TrainingApart(ranks)
        self._report_requested = threading.Event()  # by SIGQUIT

    def receive(self, message: RankState) -> None:
        """Record the state of a rank that its agent reports."""
        state = decode(message.state)
        rank = message.rank + self._first
        if state["state"] == "connected":
            self._stalls.connected(rank, time.monotonic())
        else:
            self._stalls.answered(whereabouts(rank, state), time.monotonic())

    def compare(self, rank: int, stepped: Stepped) -> None:
        """Compare the optimizers of a rank with those of the others; warn once in a job."""
        state = "idle" if stepped.over else "compute"
        sample = MetricsSample(rank + self._first, time.monotonic(), state, optimizers=stepped.optimizers)
        if warning := self._apart.observe(sample):
            self._write(f"{warning}\n".encode())

    def on_exit(self, rank: int) -> None:
        """Record a rank's exit."""
        self._stalls.exited(rank + self._first)

    def tick(self, now: float) -> float:
        """Run the checks that are due; return the number of seconds until the next ones, at most."""
        if self._report_requested.is_set():
            self._report_requested.clear()
            self._stalls.report(now)
        self._stalls.tick(now)
        return max(0.0, self._stalls.due() - now)

    def request_report(self) -> None:
        """Request a report on every rank's stack, at the next ``tick``. May be called in a signal handler."""
        self._report_requested.set()

    def _query(self, rank: int, patience_s: float | None) -> None:
        self._agents[rank - self._first].send(QueryRank(rank - self._first, patience_s))

    def _report(self, text: str) -> None:
        self._write(f"{_PREFIX}{text}".encode())


@contextmanager
def on_sigquit(request_report: Callable[[], None]) -> Iterator[None]:
    """Call ``request_report`` on SIGQUIT (Ctrl-backslash), unless the program has a handler of its own.

    SIG_IGN does not count as one: a shell sets it for commands that a script starts in the background.
    """
    before = signal.getsignal(signal.SIGQUIT)
    in_main_thread = threading.current_thread() is threading.main_thread()
    if not in_main_thread or before not in {signal.SIG_DFL, signal.SIG_IGN}:
        yield
        return
    signal.signal(signal.SIGQUIT, lambda _number, _frame: request_report())
    try:
        yield
    finally:
        signal.signal(signal.SIGQUIT, before)


def whereabouts(rank: int, state: dict[str, Any]) -> Whereabouts:
    """Return where a rank is, from the state that its agent reports."""
    if "stack" in state:
        lines = state["stack"].splitlines()
        return Whereabouts(rank, "silent", frames=python_calls(lines, {}), native=c_functions(lines))
    return from_content(Whereabouts, state | {"rank": rank})
