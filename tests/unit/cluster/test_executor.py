"""Executor before the ranks are connected: timers fire in the order in which they are due, once each."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

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
