"""Discovery script of an elastic job, as a real process on a real loop: its answers, its failures, its time limit."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from hvd_kernel.launch.elastic.discovery import TOO_MUCH_OUTPUT, DiscoveryScript
from hvd_kernel.launch.elastic.events import DiscoveryFailed, Event, HostsFound
from hvd_kernel.launch.placement import Host
from hvd_kernel.processes.event_loop import EventLoop

pytestmark = pytest.mark.mp


def told_of(command: str, count: int, *, slots: int | None = None, limit_s: float = 60.0) -> list[Event]:
    loop = EventLoop()
    found: list[Event] = []

    def take(event: Event) -> None:
        found.append(event)
        if len(found) == count:
            script.close()
            loop.stop()

    script = DiscoveryScript(command, slots, 0.0, loop, take, limit_s=limit_s)
    script.start()
    loop.run()
    loop.close()
    return found


def test_script_is_run_repeatedly(tmp_path: Path) -> None:
    count = f"echo x >> {tmp_path}/log; n=$(wc -l < {tmp_path}/log)"
    assert told_of(f'{count}; echo "a:$n"; [ $n = 1 ] || echo b', 2, slots=3) == [
        HostsFound((Host("a", 1),)),
        HostsFound((Host("a", 2), Host("b", 3))),
    ]


def test_failure_is_reported_with_its_stderr() -> None:
    [event] = told_of("echo a; echo no such file >&2; exit 3", 1)
    assert event == DiscoveryFailed("echo a; echo no such file >&2; exit 3: exit status 3; it said: no such file")


def test_stderr_is_reported_with_an_answer() -> None:
    assert told_of("echo a:1; echo careful >&2", 1) == [HostsFound((Host("a", 1),), "careful")]


def test_missing_and_killed_scripts_are_reported() -> None:
    assert "exit status 127" in told_of("/no/such/script", 1)[0].reason  # type: ignore[union-attr]
    assert told_of("kill -9 $$", 1) == [DiscoveryFailed("kill -9 $$: killed (SIGKILL)")]


def test_unparsable_line_is_reported() -> None:
    [event] = told_of("echo a:b", 1)
    assert event == DiscoveryFailed(
        "echo a:b: line 1 is not a host with its slots: 'a:b'; print host, host:4 or [fe80::1]:4"
    )


def test_time_limit_kills_the_script_and_its_children(tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    reader = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
    [event] = told_of(f"exec 3> {fifo}; sleep 600 & wait", 1, limit_s=0.5)
    assert isinstance(event, DiscoveryFailed)
    assert event.reason.endswith("it has not ended within 0.5 s")
    os.set_blocking(reader, True)
    assert os.read(reader, 1) == b"", "the end, which does not come while anybody has it open"
    os.close(reader)


def test_long_output_is_read_completely() -> None:
    [event] = told_of("seq 1 30000 | sed 's/.*/node&:1/'", 1)
    assert isinstance(event, HostsFound)
    assert (len(event.hosts), event.hosts[-1]) == (30000, Host("node30000", 1))


def test_pipe_held_by_a_background_process_is_not_awaited() -> None:
    [event] = told_of("echo a:1; sleep 600 &", 1)
    assert event == HostsFound((Host("a", 1),))


@pytest.mark.parametrize(("redirect", "stream"), [("", "stdout"), (" >&2", "stderr")])
def test_output_without_end_fails_the_run_at_a_limit(redirect: str, stream: str) -> None:
    command = f"yes a:1{redirect}"
    [event] = told_of(command, 1)
    assert isinstance(event, DiscoveryFailed)
    assert event.reason.startswith(f"{command}: {TOO_MUCH_OUTPUT.format(stream=stream)}")
