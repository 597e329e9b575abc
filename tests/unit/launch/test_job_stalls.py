"""The stall monitor of scripts: which ranks it queries, when, and its reports, in virtual time and without ranks."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import pytest

from hvd_kernel.diagnosis.stall import POLL_S, REPORT_PATIENCE_S, JobStalls
from hvd_kernel.protocol.messages import Frame, Pending, Whereabouts

LOAD = Frame("data.py:41", "load", "time.sleep(60)", is_user_code=True)
CALL = Frame("train.py:7", "", "hvd.allreduce(x)", is_user_code=True)
WAITS = "allreduce 'g' waits for rank 1, which is in data.py:41 load(): time.sleep(60)\n"


@dataclass
class Job:
    """Simulated ranks that answer at once; mute ones answer only when inspected from outside."""

    size: int = 3
    ours: Iterable[int] = ()
    watches: bool = True
    now: float = 0.0
    asked: list[tuple[int, float | None]] = field(default_factory=list)
    told: list[tuple[float, str]] = field(default_factory=list)
    waiting_since: dict[int, float] = field(default_factory=dict)
    mute: dict[int, str] = field(default_factory=dict)
    operation: str = "allreduce.g"

    def __post_init__(self) -> None:
        self.ranks = tuple(self.ours) or tuple(range(self.size))
        self._questions: list[tuple[float, int]] = []
        self.stalls = JobStalls(self.ranks, self.size, self._ask, self._tell, watches=self.watches)

    def connect(self, *ranks: int) -> None:
        for rank in ranks or self.ranks:
            self.stalls.connected(rank, self.now)

    def run(self, until: float) -> None:
        while True:
            due = min([self.stalls.due(), *(at for at, _ in self._questions)])
            if due > until:
                break
            self.now = max(self.now, due)
            for at, rank in [each for each in self._questions if each[0] <= self.now]:
                self._questions.remove((at, rank))
                self.stalls.answered(self.place(rank), self.now)
            self.stalls.tick(self.now)
        self.now = until

    def place(self, rank: int) -> Whereabouts:
        if rank in self.mute:
            return Whereabouts(rank, self.mute[rank], frames=(LOAD,))
        missing = tuple(each for each in range(self.size) if each not in self.waiting_since)
        since = min(self.waiting_since.values(), default=self.now)
        known = (Pending(self.operation, self.now - since, missing if rank == 0 else ()),)
        if rank in self.waiting_since:
            return Whereabouts(rank, "collective", self.operation, (CALL,), known)
        return Whereabouts(rank, "compute", "", (LOAD,), known if rank == 0 and self.waiting_since else ())

    def _ask(self, rank: int, patience_s: float | None) -> None:
        self.asked.append((rank, patience_s))
        if rank not in self.mute:
            self._questions.append((self.now, rank))
        elif patience_s is not None:
            self._questions.append((self.now + patience_s, rank))

    def _tell(self, text: str) -> None:
        self.told.append((self.now, text))


def test_only_rank_0_is_queried_while_no_rank_waits() -> None:
    job = Job()
    job.run(5.0)
    assert job.asked == [], "nobody has called init so far"
    job.connect()
    job.run(15.0)
    assert {rank for rank, _ in job.asked} == {0}
    assert 20 <= len(job.asked) <= 30
    assert job.told == []


@pytest.mark.parametrize("begins", [1.0, 1.13, 1.39])
def test_missing_rank_is_reported_within_a_second(begins: float) -> None:
    job = Job()
    job.connect()
    job.run(begins)
    job.waiting_since = {0: begins, 2: begins}
    job.run(begins + 1.0)
    assert [text for _, text in job.told] == [WAITS]
    assert job.told[0][0] - begins < 0.75


def test_rank_0_reports_it_without_waiting_itself() -> None:
    job = Job(waiting_since={1: 1.0, 2: 1.0})
    job.connect()
    job.run(3.0)
    assert [text for _, text in job.told] == [WAITS.replace("rank 1", "rank 0")]


def test_a_lasting_stall_is_reported_again() -> None:
    job = Job(waiting_since={0: 0.0, 2: 0.0})
    job.connect()
    job.run(100.0)
    assert [text for _, text in job.told] == [WAITS] * 3
    first, second, third = (at for at, _ in job.told)
    assert 0.6 <= first < 0.75
    assert 10 * first <= second < 10 * first + 2 * POLL_S
    assert 10 * second <= third < 10 * second + 2 * POLL_S


def test_repeatedly_late_rank_is_reported_once() -> None:
    job = Job()
    job.connect()
    for epoch in range(20):
        job.run(10.0 * epoch)
        job.waiting_since = {0: job.now, 2: job.now}
        job.run(10.0 * epoch + 3.0)
        job.waiting_since = {}
    assert [text for _, text in job.told] == [WAITS]


def test_another_operation_is_reported_at_once() -> None:
    job = Job(waiting_since={0: 0.0, 2: 0.0})
    job.connect()
    job.run(2.0)
    job.operation, job.waiting_since = "broadcast.b", {0: 2.0, 2: 2.0}
    job.run(3.0)
    assert [text.split(" waits")[0] for _, text in job.told] == ["allreduce 'g'", "broadcast 'b'"]


@pytest.mark.parametrize(
    ("state", "said"),
    [
        ("silent", "which is in C code, called in data.py:41 load(): time.sleep(60)"),
        ("stopped", "which is stopped (SIGSTOP or a debugger)"),
    ],
)
@pytest.mark.parametrize("mute", [0, 1])
def test_a_silent_rank_is_inspected_while_others_wait(mute: int, state: str, said: str) -> None:
    job = Job(mute={mute: state})
    job.connect()
    job.run(5.0)
    assert all(patience is None for _, patience in job.asked), "nobody waits: it may be in the middle of a sleep"
    job.waiting_since = {rank: 5.0 for rank in range(3) if rank != mute}
    job.run(9.0)
    assert (mute, 0.0) in job.asked
    assert [text for _, text in job.told] == [f"allreduce 'g' waits for rank {mute}, {said}\n"]


def test_unreachable_ranks_are_reported_as_such() -> None:
    job = Job(size=4, ours=(0, 1), mute={1: "absent"}, waiting_since={0: 0.0})
    job.connect(0)
    job.run(1.0)
    said = "for rank 1, which cannot be asked and for ranks 2-3, which another launcher has started"
    assert [text for _, text in job.told] == [f"allreduce 'g' waits {said}\n"]


@pytest.mark.parametrize("job", [Job(watches=False), Job(ours=(1, 2))], ids=["switched off", "rank 0 is elsewhere"])
def test_disabled_monitor_queries_no_rank_but_reports(job: Job) -> None:
    job.connect()
    job.waiting_since = {rank: 0.0 for rank in job.ranks if rank != 1}
    job.run(60.0)
    assert (job.asked, job.told) == ([], [])
    job.stalls.report(job.now)
    job.run(61.0)
    assert len(job.told) == 1


def test_a_report_has_every_rank() -> None:
    job = Job(size=4, mute={1: "silent"}, waiting_since={0: 0.0}, watches=False)
    job.connect()
    job.stalls.exited(3)
    job.stalls.report(0.0)
    job.stalls.report(0.0)
    job.run(2.0)
    expected = (
        "where the ranks are:\n"
        "[0] waiting in allreduce 'g'\n    train.py:7: hvd.allreduce(x)\n"
        "[1] in C code that keeps Python's lock\n    data.py:41 load(): time.sleep(60)\n"
        "[2] in the script's own code\n    data.py:41 load(): time.sleep(60)\n"
        "[3] has ended\n"
    )
    assert job.told == [(REPORT_PATIENCE_S, expected)]


def test_no_rank_is_queried_after_the_end_of_rank_0() -> None:
    job = Job()
    job.connect()
    job.run(1.0)
    before = len(job.asked)
    job.stalls.exited(0)
    job.run(30.0)
    assert len(job.asked) == before
