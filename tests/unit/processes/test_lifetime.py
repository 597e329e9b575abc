"""Killing of processes that cannot be signalled, or do not exit."""

from __future__ import annotations

import os
import signal
from types import SimpleNamespace

import pytest

from hvd_kernel.processes import lifetime


@pytest.mark.parametrize("error", [ProcessLookupError, PermissionError])
def test_processes_that_cannot_be_signalled_are_skipped(monkeypatch: pytest.MonkeyPatch, error: type[OSError]) -> None:
    """A setuid child of a cell, for example, which this user may not signal."""

    def refuse(_pid: int, _number: int) -> None:
        raise error

    monkeypatch.setattr(os, "kill", refuse)
    lifetime.kill(1, signal.SIGKILL)


def test_children_that_do_not_exit_are_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """A child in an uninterruptible sleep (state D) exits whenever its driver lets it, or never."""
    now, killed = [0.0], set[int]()

    def sleep(seconds: float) -> None:
        now[0] += seconds
        assert now[0] < 60.0, "it would wait forever"

    monkeypatch.setattr(lifetime, "time", SimpleNamespace(monotonic=lambda: now[0], sleep=sleep))
    monkeypatch.setattr(lifetime, "children", lambda _pid: [77])
    monkeypatch.setattr(lifetime, "kill", lambda pid, _number: killed.add(pid))
    monkeypatch.setattr(os, "waitpid", lambda _pid, _flags: (0, 0))
    lifetime.kill_descendants()
    assert killed == {77}
