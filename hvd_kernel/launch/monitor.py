"""A running job: carries what its ranks say, notes how they end, and ends the others when one fails.

Words.
  settle   the time between the first failure and the end of the others, in which the guilty rank may show itself
  starter  mpiexec, where it has started the ranks
  taken    ranks that it has ended, or has had ended: such an end is no failure of theirs
"""

from __future__ import annotations

import signal
import time
from collections.abc import Sequence
from dataclasses import replace

from hvd_kernel.errors import ClusterError
from hvd_kernel.launch.agents import Agent, Crew
from hvd_kernel.launch.launchers.mpiexec import Starter
from hvd_kernel.launch.line_output import Voice, Write
from hvd_kernel.launch.outcome import Failure, culprit, is_consequence, told
from hvd_kernel.launch.stdin import Source
from hvd_kernel.launch.whereabouts import RankMonitor
from hvd_kernel.processes.channel import messages as m

_NEVER = float("inf")
_SETTLE_S = 0.5
_SEARCH_S = 10.0  # the same where all that is known is that some other rank has failed: it may be slow to end
_TURN_S = 0.5
_TAIL = 25
_LINGER_S = 5.0  # that mpiexec may take to end when the ranks have
_LATE_S = 1.0  # until what the ranks' agents said last has come, when mpiexec is gone
_BY_SIGNAL = {-signal.SIGTERM, -signal.SIGKILL, 128 + signal.SIGTERM, 128 + signal.SIGKILL}


class Watch:
    """Runs until every rank has ended."""

    def __init__(
        self,
        crew: Crew,
        voices: Sequence[tuple[Voice, Voice]],
        home: Sequence[Agent],
        grace_s: float,
        starter: Starter | None = None,
        *,
        monitor: RankMonitor,
    ) -> None:
        self.failures: list[Failure] = []
        self._crew, self._voices, self._home, self._grace_s, self._starter = crew, voices, home, grace_s, starter
        self._monitor = monitor
        self._taken: set[int] = set()
        self._starter_due = _NEVER  # when mpiexec, or what it has left, is ended
        self._released = False
        self.codes: dict[int, int] = {}
        self._why: dict[int, str] = {}  # ranks that were killed for a limit
        self._first_failure = 0.0
        self._stopped_at = 0.0

    def run(self, stdin: int, deadline: float) -> None:
        """Carry everything until the last rank has ended.

        Raises
        ------
        ClusterError
            A host was lost, its ranks could not be started, mpiexec ended them, or the deadline passed.
        """
        source = Source(stdin)
        while not all(agent.gone for agent in self._crew.agents):
            also = -1 if self._home[0].gone else source.fd
            turn = min(self._monitor.tick(time.monotonic()), 0.05 if self._settling else _TURN_S)
            for agent, message in self._crew.received(turn, also):
                if isinstance(message, m.RankState):
                    self._monitor.hear(message)
                else:
                    self._handle(agent, message, source)
            source.pump(self._home[0])
            self._tick(time.monotonic(), deadline)
        self._finish_voices()
        if self._taken and not self.failures and not self._stopped_at:
            self._ask_starter()

    def stop(self) -> None:
        """Have the ranks ended; ``run`` again to see them end."""
        self._stop(self._grace_s)

    def _finish_voices(self) -> None:
        for pair in self._voices:
            for voice in pair:
                voice.finish()
        self.failures = [replace(failure, words=self._voices[failure.rank][1].tail) for failure in self.failures]

    @property
    def _settling(self) -> bool:
        return bool(self.failures) and not self._stopped_at

    def _handle(self, agent: Agent, message: m.Message, source: Source) -> None:
        match message:
            case m.ChannelClosed():
                self._gone(agent)
            case m.Output(rank=m.MPIEXEC):
                self._of_starter(message)
            case m.Output():
                self._voices[message.rank][message.stream == "stderr"].say(message.data)
            case m.InputTaken():
                source.taken()
            case m.RankExited() if message.rank != m.MPIEXEC:
                self._exited(message.rank, message.status)
            case m.RankKilled():
                self._why[message.rank] = message.why
            case m.Flushed():
                self._release()
            case m.Terminated():
                self._taken |= {rank for rank, home in enumerate(self._home) if home is agent}
            case m.StartFailed() if message.rank != m.MPIEXEC:
                self._stop(0.0)
                raise ClusterError(f"rank {message.rank} cannot be started on {agent.host.name}: {message.why}.")

    def _gone(self, agent: Agent) -> None:
        missing = [rank for rank, home in enumerate(self._home) if home is agent and rank not in self.codes]
        if missing and (loss := agent.lost()) is not None:
            self._stop(0.0)
            raise loss
        for rank in missing:
            self._taken.add(rank)
            self._exited(rank, -signal.SIGKILL)
        if not agent.holds_ranks:
            self._expect_starters_end(_LATE_S)
            if len(self.codes) == len(self._home):
                self._release()

    def _of_starter(self, output: m.Output) -> None:
        if self._starter is not None:
            calm = not self.failures and not self._stopped_at and not self._released
            self._starter.hear(output.data, aloud=calm)

    def _ask_starter(self) -> None:
        """Find the guilty rank in mpiexec's words: ranks were ended by it, and none has failed for all one can see."""
        assert self._starter is not None
        rank, code = self._starter.blamed()
        if rank is None or rank not in self.codes:
            raise self._starter.ended()
        self.codes[rank] = code
        self.failures.append(Failure(rank, code, self._voices[rank][1].tail))

    def _exited(self, rank: int, code: int) -> None:
        self.codes[rank] = code
        self._monitor.ended(rank)
        if code and not self._stopped_at and not (rank in self._taken and code in _BY_SIGNAL):
            self._first_failure = self._first_failure or time.monotonic()
            out, err = self._voices[rank]
            out.finish()
            err.finish()
            self.failures.append(Failure(rank, code, err.tail, self._why.get(rank, "")))
        if len(self.codes) == len(self._home):
            self._expect_starters_end(_LINGER_S)
            self._let_starter_finish()

    def _let_starter_finish(self) -> None:
        """Let the agents go when all is heard that mpiexec has said before: what it says of their end is not theirs."""
        holders = [agent for agent in self._crew.agents if not agent.holds_ranks and not agent.gone]
        for holder in holders:
            holder.send(m.Flush())
        if not holders:
            self._release()

    def _release(self) -> None:
        self._released = True
        for agent in self._crew.agents:
            agent.release()

    def _expect_starters_end(self, seconds: float) -> None:
        if self._starter is not None:
            self._starter_due = time.monotonic() + seconds

    def _end_starter(self) -> None:
        """End mpiexec, which has outlived its ranks, and what is left of the ranks, which have outlived mpiexec."""
        self._starter_due = time.monotonic() + _LINGER_S
        for agent in self._crew.agents:
            if not agent.holds_ranks:
                agent.stop(0.0)
            elif not agent.gone:
                agent.end()
                self._gone(agent)

    def _tick(self, now: float, deadline: float) -> None:
        if now > deadline:
            self._stop(0.0)
            raise ClusterError(f"the ranks did not end in time; all of them have been ended.{self._last_words()}")
        if self._settling:
            known = any(not is_consequence(failure) for failure in self.failures)
            if now - self._first_failure > (_SETTLE_S if known else _SEARCH_S):
                self._stop(self._grace_s)
        if now > self._starter_due:
            self._end_starter()
        for _, err in self._voices:
            if not self.failures and err.overdue(now):
                err.release()

    def _last_words(self) -> str:
        said = [line for _, err in self._voices for line in err.tail]
        return " Their last output:\n" + "\n".join(said[-_TAIL:]) if said else ""

    def _stop(self, grace: float) -> None:
        self._stopped_at = time.monotonic()
        self._expect_starters_end(grace + _LINGER_S)
        self._crew.stop(grace)

    def last_words(self, write: Write, *, quiet: bool = False, first: int = 0) -> Failure | None:
        """Write the tracebacks that were kept back, equal ones once, the guilty rank's last; return that rank's end.

        ``quiet``: whoever called tells of the failures himself, and none of it is written. ``first``: what the first of
        these ranks is called, where other launchers start those before it.
        """
        guilty = culprit(self.failures)
        if quiet:
            for failure in self.failures:
                self._voices[failure.rank][1].forget()
            return guilty
        if guilty is None:
            for _, err in self._voices:
                err.release()
            return None
        others = [failure for failure in self.failures if failure.rank != guilty.rank]
        theirs = self._voices[guilty.rank][1].held
        alike = [failure.rank for failure in others if theirs and self._voices[failure.rank][1].held == theirs]
        because = [failure.rank for failure in others if failure.rank not in alike and is_consequence(failure)]
        self._say_once(guilty.rank, because)
        named = replace(guilty, rank=guilty.rank + first)
        write(sentence(named, [rank + first for rank in alike], [rank + first for rank in because]).encode())
        return guilty

    def _say_once(self, guilty: int, because: Sequence[int]) -> None:
        """Release what is held, the guilty rank's last; of what only tells of that rank's failure, each text once.

        A rank may have said the same as the guilty one and been ended before it could fail alike.
        """
        said: list[tuple[bytes, ...]] = []
        theirs = self._voices[guilty][1].held
        for rank, (_, err) in enumerate(self._voices):
            if rank != guilty and (err.held == theirs or (rank in because and err.held in said)):
                err.forget()
            elif rank != guilty:
                said.append(err.held)
                err.release()
        self._voices[guilty][1].release()


def sentence(guilty: Failure, alike: Sequence[int], because: Sequence[int]) -> str:
    """Return the last line of a job that failed."""
    more = "".join(
        f"; rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, sorted(ranks)))} failed {why}"
        for ranks, why in ((alike, "alike"), (because, "because of it"))
        if ranks
    )
    how = f"RankDied: {guilty.why}" if guilty.why else told(guilty.code)
    return f"hvdrun: rank {guilty.rank} failed ({how}){more}; all ranks have ended.\n"
