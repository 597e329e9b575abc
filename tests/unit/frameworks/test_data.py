"""Loaders that read ahead: every batch once and in order, exceptions are passed on, and no thread is left."""

from __future__ import annotations

import gc
import logging
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from hvd_kernel.data import AsyncDataLoaderMixin, BaseDataLoader
from hvd_kernel.data.data_loader_base import BaseDataLoader as SameLoader

PATIENCE_S = 60


class Numbers(BaseDataLoader):
    """0, 1, 2, ... with counters of reading: ``read`` batches, ``closed`` epochs."""

    def __init__(self, count: int = 5, fails_at: int | None = None) -> None:
        self.count, self.fails_at = count, fails_at
        self.read: list[int] = []
        self.closed = 0
        self.threads: set[str] = set()

    def __len__(self) -> int:
        return self.count

    def _iterate(self) -> Iterator[Any]:
        self.threads.add(threading.current_thread().name)
        try:
            for number in range(self.count):
                if number == self.fails_at:
                    raise KeyError("shard", number)
                self.read.append(number)
                yield number
        finally:
            self.closed += 1

    def _process_batch(self, batch: Any) -> Any:
        return batch * 10, threading.current_thread().name


class NumbersAhead(AsyncDataLoaderMixin, Numbers):
    pass


def readers() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "hvd-data"]


@pytest.fixture(autouse=True)
def nobody_is_left() -> Iterator[None]:
    yield
    for thread in readers():
        thread.join(PATIENCE_S)
    assert readers() == []


def test_the_interface() -> None:
    assert SameLoader is BaseDataLoader
    for method in (BaseDataLoader.__len__, BaseDataLoader._iterate):
        with pytest.raises(NotImplementedError):
            method(BaseDataLoader())
    assert BaseDataLoader()._process_batch(7) == 7
    me = threading.current_thread().name
    assert list(Numbers(3)) == [(0, me), (10, me), (20, me)]


@pytest.mark.parametrize("size", [0, 1, 2, 64])
def test_every_epoch_is_complete_and_in_order(size: int) -> None:
    loader = NumbersAhead(size, count=7)
    me = threading.current_thread().name
    for epoch in range(1, 4):
        assert list(loader) == [(10 * number, me) for number in range(7)], "processed by who takes them"
        assert loader.closed == epoch
    assert loader.threads == ({"hvd-data"} if size else {me})
    assert len(loader) == 7


def test_arguments_equal_horovods() -> None:
    loader = NumbersAhead(3, True, 4, fails_at=2)
    assert (loader.async_loader_queue_size, loader.debug_data_loader) == (3, True)
    assert (loader.count, loader.fails_at) == (4, 2)
    assert NumbersAhead().async_loader_queue_size == 64
    with pytest.raises(ValueError, match=r"async_loader_queue_size=-1 must be 0 \(no thread\) or more"):
        NumbersAhead(-1)


def test_none_is_a_valid_batch() -> None:
    class Nothings(AsyncDataLoaderMixin, BaseDataLoader):
        def _iterate(self) -> list[None]:
            return [None, None]

    assert [batch for batch in Nothings()] == [None, None]  # noqa: C416 - list() would ask for the length


def test_no_more_than_the_queue_and_one_are_read_ahead() -> None:
    """The reader stops while the queue is full: it continues with each batch that is consumed."""
    full = threading.Event()

    class Counting(NumbersAhead):
        def _iterate(self) -> Iterator[Any]:
            for number in super()._iterate():
                if number == 3:
                    full.set()  # 0 was taken, 1 to 3 fill the queue
                yield number

    loader = Counting(3, count=100)
    batches = iter(loader)
    next(batches)
    assert full.wait(PATIENCE_S)
    assert loader.read == [0, 1, 2, 3]
    batches.close()


@pytest.mark.parametrize("size", [1, 64])
def test_exception_is_raised_after_earlier_batches(size: int) -> None:
    loader = NumbersAhead(size, fails_at=3)
    for _ in range(2):
        seen: list[int] = []
        with pytest.raises(KeyError) as caught:
            seen.extend(batch for batch, _ in loader)
        assert caught.value.args == ("shard", 3)
        assert "_iterate" in [entry.name for entry in caught.traceback], "the traceback shows where"
        assert seen == [0, 10, 20]
    assert loader.closed == 2


def test_exception_of_the_user_ends_the_thread() -> None:
    loader = NumbersAhead(2, count=1000)

    def work() -> None:
        for batch, _ in loader:
            1 // (batch - 20)

    with pytest.raises(ZeroDivisionError):
        work()
    for thread in readers():
        thread.join(PATIENCE_S)
    assert (readers(), loader.closed) == ([], 1)


def test_abandoned_epoch_leaves_nothing_to_the_next() -> None:
    loader = NumbersAhead(3, count=50)
    for _ in range(5):
        for batch, _ in loader:
            if batch == 20:
                break
    assert [batch for batch, _ in loader] == [10 * number for number in range(50)]
    assert loader.closed == 6


def test_leaving_early_does_not_wait_but_the_next_epoch_does() -> None:
    asked, answer = threading.Event(), threading.Event()
    inside: list[int] = []

    class Slow(AsyncDataLoaderMixin, BaseDataLoader):
        def _iterate(self) -> Iterator[int]:
            inside.append(1)
            assert len(inside) == 1, "two read the source at the same time"
            yield 1
            asked.set()
            assert answer.wait(PATIENCE_S)
            inside.pop()
            yield 2

    loader = Slow()
    batches = iter(loader)
    assert next(batches) == 1
    assert asked.wait(PATIENCE_S)
    batches.close()  # returns although the source says nothing
    assert len(readers()) == 1
    again = iter(loader)
    threading.Timer(0.05, answer.set).start()
    assert list(again) == [1, 2]


def test_close_ends_the_threads_and_their_waiters() -> None:
    loader = NumbersAhead(2, count=1000)
    first, second = iter(loader), iter(loader)
    assert next(first)[0] == next(second)[0] == 0
    loader.close_async_loader()
    assert readers() == []
    assert loader.closed == 2
    assert list(first) == list(second) == []
    loader.close_async_loader()
    assert len(list(loader)) == 1000, "a closed loader may begin again"
    NumbersAhead(0).close_async_loader()


def test_garbage_collected_loader_ends_its_thread() -> None:
    batches = iter(NumbersAhead(2, count=1000))
    next(batches)
    (thread,) = readers()
    del batches
    gc.collect()
    thread.join(PATIENCE_S)
    assert not thread.is_alive()


def test_loader_logs_its_activity_if_verbose(
    caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    with caplog.at_level(logging.INFO, "hvd_kernel"):
        quiet, talking = NumbersAhead(), NumbersAhead(5, debug_data_loader=True)
        for loader in (quiet, talking):
            list(loader)
            loader.close_async_loader()
    assert caplog.messages == [
        "NumbersAhead: a thread reads up to 5 batches ahead",
        "NumbersAhead: no thread reads any more",
    ]
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("ending", ["", "sys.exit(0)", "loader = None", "os.kill(os.getpid(), signal.SIGINT)"])
def test_a_program_ends_in_the_middle_of_an_epoch(ending: str) -> None:
    code = f"""
import os, signal, sys
from hvd_kernel.data import AsyncDataLoaderMixin, BaseDataLoader, prefetch
prefetch._AT_EXIT_S = {PATIENCE_S}  # a reader that is not stuck is waited for, however slow the machine is
class Endless(AsyncDataLoaderMixin, BaseDataLoader):
    def _iterate(self):
        try:
            while True:
                yield 1
        finally:
            print("closed", flush=True)
loader = Endless()
batches = iter(loader)
next(batches)
{ending}
"""
    done = subprocess.run(
        [sys.executable, "-P", "-c", code], capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    assert done.stdout == "closed\n"
    assert ("KeyboardInterrupt" in done.stderr) == ("SIGINT" in ending)


def test_forked_child_reads_independently() -> None:
    loader = NumbersAhead(2, count=6)
    batches = iter(loader)
    next(batches)
    child = os.fork()
    if child == 0:
        good = [batch for batch, _ in loader] == [0, 10, 20, 30, 40, 50]
        batches.close()
        os._exit(0 if good else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert [batch for batch, _ in batches] == [10, 20, 30, 40, 50]
