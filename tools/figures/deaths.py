"""Figures of deaths: time until every survivor knows of one, and whether a pause is ever mistaken for one.

Terms.
  rank    a process forked from this one, with our engine, that sums and checks its sums until something ends it
  word    a message of a rank through its pipe: that it sums, and how it ended
"""

from __future__ import annotations

import json
import os
import random
import select
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
from hvdtest.launch import free_port, horovod_variables

from hvd_kernel import errors
from hvd_kernel.core import ops, session

RANKS = 4
FLOATS = 4 << 20
PATIENCE_S = 60.0


@dataclass
class Rank:
    """A process and the reading end of its pipe."""

    pid: int
    pipe: int

    def word(self) -> dict[str, Any]:
        """Return the next message of the rank."""
        ready, _, _ = select.select([self.pipe], [], [], PATIENCE_S)
        assert ready, f"process {self.pid} has sent nothing for {PATIENCE_S:g} s"
        line = b""
        while not line.endswith(b"\n"):
            byte = os.read(self.pipe, 1)
            assert byte, f"process {self.pid} exited without a message"
            line += byte
        return json.loads(line)


@contextmanager
def ranks(transport: str, floats: int) -> Iterator[list[Rank]]:
    """Start four ranks that sum; after SIGUSR1 to rank 0 the next sum is the last one."""
    port, started = free_port(), []
    try:
        for number in range(RANKS):
            reader, writer = os.pipe()
            pid = os.fork()
            if pid == 0:
                _be(number, port, transport, floats, writer)
            os.close(writer)
            started.append(Rank(pid, reader))
        for rank in started:
            assert rank.word() == {"sums": True}
        yield started
    finally:
        for rank in started:
            os.kill(rank.pid, signal.SIGKILL)
            os.waitpid(rank.pid, 0)
            os.close(rank.pipe)


def _be(rank: int, port: int, transport: str, floats: int, pipe: int) -> None:
    """Run a rank in this process; does not return."""
    status = 1
    try:
        os.environ.update(horovod_variables(rank, RANKS, port), HVD_TRANSPORT=transport, HVD_STOP_ABORT="5")
        with os.fdopen(pipe, "w", buffering=1) as words:
            _sum(rank, floats, words)
        status = 0
    except BaseException as error:
        sys.stderr.write(f"rank {rank}: {type(error).__name__}: {error}\n")
    finally:
        os._exit(status)


def _sum(rank: int, floats: int, words: Any) -> None:
    signals: list[int] = []
    signal.signal(signal.SIGUSR1, lambda number, _frame: signals.append(number))
    session.init()
    values = np.full(floats, rank + 1, np.float32)
    rounds = last = 0
    try:
        while not last:
            total = ops.allreduce(values, name="sum", op=ops.Sum)
            assert total.min() == total.max() == RANKS * (RANKS + 1) // 2, "a wrong sum"
            last = ops.allreduce(np.array([len(signals) if rank == 0 else 0]), name="last", op=ops.Sum).item()
            rounds += 1
            if rounds == 1:
                words.write(json.dumps({"sums": True}) + "\n")
        words.write(json.dumps({"rounds": rounds}) + "\n")
    except errors.HorovodInternalError as error:
        received = time.monotonic()
        words.write(
            json.dumps({"at": received, "kind": type(error).__name__, "rank": error.rank, "text": str(error)}) + "\n"
        )


def known(kills: int = 200) -> str:
    """Measure R1: SIGKILL at a random moment of an allreduce, every rank and both transports in turn, by the survivors' clocks."""
    chance = random.Random(1)
    times_ms: list[float] = []
    for number in range(kills):
        victim = number % RANKS
        with ranks(("shm", "tcp")[number // RANKS % 2], FLOATS) as four:
            time.sleep(chance.uniform(0, 0.05))  # the random moment
            began = time.monotonic()
            os.kill(four[victim].pid, signal.SIGKILL)
            for survivor in (rank for place, rank in enumerate(four) if place != victim):
                word = survivor.word()
                assert (word["kind"], word["rank"]) == ("RankDied", victim), (victim, four, word)
                times_ms.append(1000 * (word["at"] - began))
    ordered = sorted(times_ms)
    high = ordered[round(0.99 * (len(ordered) - 1))]
    middle = ordered[len(ordered) // 2]
    return (
        f"p50 {middle:.1f} ms, p99 {high:.1f} ms, worst {ordered[-1]:.1f} ms, "
        f"{kills} kills, {len(ordered)} survivors, all named the rank"
    )


def false_deaths(pauses: int = 1000) -> str:
    """Measure R3: SIGSTOP of a random rank for 10 to 400 ms, repeatedly, during sums that are checked."""
    chance = random.Random(3)
    rounds = 0
    for number, transport in enumerate(("shm", "tcp")):
        with ranks(transport, FLOATS >> 6) as four:
            for _ in range((pauses + number) // 2):
                victim = four[chance.randrange(RANKS)].pid
                os.kill(victim, signal.SIGSTOP)
                time.sleep(chance.uniform(0.01, 0.4))  # the pause
                os.kill(victim, signal.SIGCONT)
                time.sleep(chance.uniform(0.0, 0.02))
            os.kill(four[0].pid, signal.SIGUSR1)
            words = [rank.word() for rank in four]
            assert all("rounds" in word for word in words), words
            assert len({word["rounds"] for word in words}) == 1, words
            rounds += words[0]["rounds"]
    return f"0 false deaths in {pauses} pauses of 10 to 400 ms, {rounds} sums, all right"
