"""The queue of jobs: one at a time, in order, with the ranks locked from the first to the last, however a job ends."""

from __future__ import annotations

import threading
import time
from contextvars import ContextVar
from types import SimpleNamespace

import pytest
from hvdtest import fakes
from hvdtest.magic_lines import parse

from hvd_kernel.errors import HvdTimeout, UsageError
from hvd_kernel.magics import jobs as jobs_module
from hvd_kernel.magics.cluster_manager import ClusterManager
from hvd_kernel.magics.commands import background
from hvd_kernel.magics.display.user_errors import merged_error
from hvd_kernel.magics.jobs import CANCELLED, DONE, FAILED, KEEP, QUEUED, RUNNING, BackgroundJob, Jobs, Work
from hvd_kernel.protocol.messages import Failure

CELL: ContextVar[str] = ContextVar("cell")
PATIENCE_S = 60.0


class FakeWriter:
    """A fake writer that records a job's output and its place."""

    def __init__(self, *, has_user: bool = False, broken: bool = False) -> None:
        self.has_user = has_user
        self.said: list[tuple[str, str]] = []
        self._broken = broken

    def open(self, _job: str, _ranks: tuple[int, ...], state: str) -> None:
        self.said.append((state, CELL.get("")))

    def close(self, _job: str, state: str, _error: BaseException | None) -> None:
        self.said.append((state, CELL.get("")))
        if self._broken:
            raise OSError("no front end")


class Gate:
    """The work of a job that begins and ends on command."""

    def __init__(self) -> None:
        self.begun, self.go = threading.Event(), threading.Event()

    def __call__(self, _job: BackgroundJob) -> None:
        self.begun.set()
        assert self.go.wait(PATIENCE_S)


def job(name: str, work: Work, **writer: bool) -> BackgroundJob:
    return BackgroundJob(name, (0, 1), FakeWriter(**writer), work)


def begun(*works: Work) -> tuple[Jobs, threading.Lock, list[BackgroundJob]]:
    """A queue with a job for each piece of work."""
    lock = threading.Lock()
    jobs, made = Jobs(lock), [job(f"j{i}", work) for i, work in enumerate(works)]
    assert lock.acquire(blocking=False)
    with jobs._lock:  # none ends before the last one has come
        jobs.begin(made[0])
        assert all(jobs.join(each) for each in made[1:])
    return jobs, lock, made


def nothing(_job: BackgroundJob) -> None: ...


def test_jobs_run_in_order_and_hold_the_ranks_throughout() -> None:
    gate, order = Gate(), []
    jobs, lock, (first, second, third) = begun(
        gate,
        lambda each: order.append((each.name, lock.locked())),
        lambda each: order.append((each.name, lock.locked())),
    )
    assert (first.state, second.state, third.state) == (RUNNING, QUEUED, QUEUED)
    assert jobs.at_work() is first
    gate.go.set()
    third.wait(PATIENCE_S)
    assert not lock.locked(), "who hears of the last one's end finds the ranks free"
    assert order == [("j1", True), ("j2", True)]
    assert [each.state for each in jobs] == [DONE] * 3
    assert jobs.at_work() is None
    assert not jobs.join(job("late", nothing)), "there is no queue to stand in"


def test_output_of_a_job_belongs_to_its_starting_cell() -> None:
    seen = []
    token = CELL.set("cell 7")
    _, _, (one,) = begun(lambda _job: seen.append(CELL.get()))
    CELL.reset(token)
    one.wait(PATIENCE_S)
    assert seen == ["cell 7"]
    assert one.writer.said == [(RUNNING, "cell 7"), (DONE, "cell 7")]


def test_names() -> None:
    gate = Gate()
    jobs, lock, (one,) = begun(gate)
    assert [jobs.name(""), jobs.name("")] == ["job1", "job2"], "a name is not given twice"
    assert jobs.join(job("job3", nothing))
    assert jobs.name("") == "job4"
    with pytest.raises(UsageError, match="there is a job j0 already, running: take another name, or %hvdcancel j0"):
        jobs.name("j0")
    with pytest.raises(UsageError, match="there is no job 'x'; there is j0, job3"):
        jobs.find("x")
    gate.go.set()
    jobs.find("job3").wait(PATIENCE_S)
    assert jobs.name("j0") == "j0"
    assert lock.acquire(blocking=False)
    jobs.begin(again := job("j0", nothing))
    again.wait(PATIENCE_S)
    assert [each.name for each in jobs] == ["job3", "j0"], "the new one took its place"
    assert jobs.find("j0") is not one


def test_failure_is_raised_to_waiters_and_the_next_job_runs() -> None:
    failures = [
        Failure(1, "ValueError", "bad", ("tb",), 1.0),
        Failure(0, "RankFailed", "r", (), 2.0, secondary=True),
        Failure(3, "ValueError", "worse", ("tb",), 1.1),
    ]

    def fails(_job: BackgroundJob) -> None:
        raise merged_error(failures)

    _, _, (first, second) = begun(fails, nothing)
    second.wait(PATIENCE_S)
    for _ in range(2):
        with pytest.raises(ValueError, match="bad"):
            first.wait(PATIENCE_S)
    assert (first.state, second.state) == (FAILED, DONE)
    assert first.state_text(times=True) == "failed: ValueError on ranks 1,3"


def test_cancel_ends_queued_jobs_and_interrupts_running_ones() -> None:
    gate, ran = Gate(), []
    jobs, _, (first, second, third) = begun(gate, ran.append, ran.append)
    jobs.cancel(second)
    assert (second.state, second.ended.is_set()) == (CANCELLED, True)
    with pytest.raises(KeyboardInterrupt, match="job j1 was cancelled before its turn came"):
        second.wait(PATIENCE_S)
    jobs.cancel(first)
    jobs.cancel(first)
    assert first.interrupts.count == 2
    gate.go.set()
    third.wait(PATIENCE_S)
    assert ran == [third]


def test_clear_cancels_all_and_returns_if_ranks_are_free() -> None:
    gate = Gate()
    jobs, lock, (first, second) = begun(gate, nothing)
    assert not jobs.clear(0.01)
    assert (first.interrupts.count, second.state) == (1, CANCELLED)
    gate.go.set()
    assert jobs.clear(PATIENCE_S)
    assert not lock.locked()


class EndsWhenLookedAt(threading.Event):
    """An event that is set right after it was observed as unset."""

    def is_set(self) -> bool:
        was = super().is_set()
        self.set()
        return was


def obedient(one: BackgroundJob) -> None:
    """Work that continues until the interrupt key is pressed."""
    deadline = time.monotonic() + PATIENCE_S
    while not one.interrupts.count:
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_job_that_ends_during_cancel_all_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(background, "STUCK_S", PATIENCE_S)
    jobs, _, (_, second) = begun(obedient, nothing)
    second.ended = EndsWhenLookedAt()
    writer = fakes.FakeWriter()
    context = SimpleNamespace(manager=SimpleNamespace(jobs=jobs), writer=lambda: writer)
    background.cancel(context, parse("%hvdcancel", "all"))  # type: ignore[arg-type]
    assert [text for _, text in writer.written] == ["job j0: done\n", "job j1: cancelled\n"]


def test_ranks_are_free_once_the_last_job_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    manager, gate = ClusterManager(), Gate()
    last = job("last", gate)
    manager.start_job(last, lambda: None)
    at_work = manager.jobs.at_work

    def ends_first() -> BackgroundJob | None:
        gate.go.set()
        last.wait(PATIENCE_S)
        return at_work()

    monkeypatch.setattr(manager.jobs, "at_work", ends_first)
    with manager.use():
        assert last.state == DONE


def test_abandoned_jobs_later_end_changes_nothing() -> None:
    gate = Gate()
    jobs, lock, (stuck, behind) = begun(gate, nothing)
    assert gate.begun.wait(PATIENCE_S)
    jobs.abandon()
    assert (stuck.state, behind.state, lock.locked()) == (CANCELLED, CANCELLED, False)
    assert lock.acquire(blocking=False)
    jobs.begin(new := job("new", other := Gate()))
    gate.go.set()
    thread = next(each for each in threading.enumerate() if each.name == "hvd-jobs")
    other.go.set()
    thread.join(PATIENCE_S)
    new.wait(PATIENCE_S)
    assert (stuck.state, new.state, lock.locked()) == (CANCELLED, DONE, False)


def test_unshowable_output_fails_its_job_not_the_queue() -> None:
    gate = Gate()
    jobs, lock, (first,) = begun(gate)
    unseen, last = job("unseen", nothing, broken=True), job("last", nothing)
    assert jobs.join(unseen)
    assert jobs.join(last)
    gate.go.set()
    last.wait(PATIENCE_S)
    with pytest.raises(OSError, match="no front end"):
        unseen.wait(PATIENCE_S)
    assert (first.state, unseen.state, last.state, lock.locked()) == (DONE, FAILED, DONE, False)


def test_a_wait_can_end_before_the_job() -> None:
    gate = Gate()
    _, _, (slow,) = begun(gate)
    with pytest.raises(HvdTimeout, match=r"job j0 has not ended within 0\.01 s and goes on: %hvdcancel j0 ends it"):
        slow.wait(0.01)
    gate.go.set()
    slow.wait(PATIENCE_S)


def test_times_are_shown_only_to_users(monkeypatch: pytest.MonkeyPatch) -> None:
    gate, now = Gate(), [100.0]
    monkeypatch.setattr(jobs_module, "time", SimpleNamespace(monotonic=lambda: now[0]))
    _, _, (quiet,) = begun(gate)
    seen = job("seen", nothing, has_user=True)
    seen.begin()
    now[0] += 7.2
    assert quiet.state_text(times=False) == "running"
    assert quiet.state_text(times=True) == "running 7 s"
    assert quiet.sentence() == "the ranks are busy with job j0: wait with %hvdjobs --wait j0, or %hvdcancel j0"
    assert (
        seen.sentence()
        == "the ranks are busy with job seen (7 s so far): wait with %hvdjobs --wait seen, or %hvdcancel seen"
    )
    gate.go.set()
    quiet.wait(PATIENCE_S)


def test_a_bounded_number_of_ended_jobs_is_remembered() -> None:
    jobs, lock, made = begun(*[nothing] * (KEEP + 20))
    made[-1].wait(PATIENCE_S)
    assert lock.acquire(blocking=False)
    new = job("new", nothing)
    jobs.begin(new)
    new.wait(PATIENCE_S)
    assert list(jobs) == [*made[20:], new]
