"""Executor before the ranks are connected: timers fire in the order in which they are due, once each."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hvd_kernel.cluster.controller import HEARTBEAT_MS, misses
from hvd_kernel.cluster.executor import Executor
from hvd_kernel.cluster.ranks.rank_table import RankTable
from hvd_kernel.processes.cluster_spec import ClusterSpec
from hvd_kernel.processes.event_loop import SetTimer, TimerFired


def test_timers_fire_in_order_and_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    readable, writable = os.pipe()
    received: list[str] = []
    launched: Any = SimpleNamespace(
        folder=tmp_path,
        descriptor=readable,
        send=lambda _message: None,
        receive=lambda: received.append("messages") or [],
    )
    executor = Executor(ClusterSpec(1), RankTable(1, "here"), launched)
    fired: list[object] = []
    monkeypatch.setattr(executor, "deliver", fired.append)
    late, soon = (1, 0), (1, 1)
    executor._set_timer(SetTimer(late, 0.5))
    executor._set_timer(SetTimer(soon, 0.0))
    executor._await_connection()
    assert fired == [TimerFired(soon)]
    os.write(writable, b"x")
    executor._await_connection()
    assert (fired, received) == ([TimerFired(soon)], ["messages"])
    os.read(readable, 1)
    executor._await_connection()
    assert fired == [TimerFired(soon), TimerFired(late)]
    os.close(readable)
    os.close(writable)


# Missed heartbeats: they end a rank of another host, never one of this host, where the process itself is watched.

DAY_MS = 24 * 3600 * 1000


def test_a25_silence_is_no_death_on_this_host() -> None:
    """A rank under SIGSTOP was dead "for a reason that is not known" after 15 s."""
    assert misses("127.0.0.1") * HEARTBEAT_MS > 365 * DAY_MS


def test_ten_seconds_of_silence_are_one_on_another_host() -> None:
    assert misses("10.0.0.1") * HEARTBEAT_MS == 10_000
