"""Missed heartbeats: they end a rank of another host, never one of this host, where the process itself is watched."""

from __future__ import annotations

from hvd_kernel.cluster.controller import HEARTBEAT_MS, misses

DAY_MS = 24 * 3600 * 1000


def test_a25_silence_is_no_death_on_this_host() -> None:
    """A rank under SIGSTOP was dead "for a reason that is not known" after 15 s."""
    assert misses("127.0.0.1") * HEARTBEAT_MS > 365 * DAY_MS


def test_ten_seconds_of_silence_are_one_on_another_host() -> None:
    assert misses("10.0.0.1") * HEARTBEAT_MS == 10_000
