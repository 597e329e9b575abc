"""Messages of %hvd respawn, the kept names, and the memory for a spare."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from hvd_kernel.cluster import registration
from hvd_kernel.cluster.ranks.changes import Respawned
from hvd_kernel.cluster.supervisor import Supervisor
from hvd_kernel.core.session import Rendezvous
from hvd_kernel.magics.commands.lifecycle import respawn_ranks
from hvd_kernel.magics.messages import respawn_outcome
from hvd_kernel.processes.channel import messages
from hvd_kernel.processes.event_loop import EventLoop
from hvd_kernel.processes.limits import free_memory
from hvd_kernel.protocol import notebook
from hvd_kernel.settings import lookup


@pytest.mark.parametrize(
    ("done", "text"),
    [
        (Respawned((), 0), "no rank is dead\n"),
        (
            Respawned((), 0, silent=(2,)),
            "no rank is dead, but rank 2 does not answer: `%hvd stacks` shows where, `%hvd respawn 2 --force` replaces it\n",
        ),
        (
            Respawned((), 0, silent=(0, 2, 3)),
            (
                "no rank is dead, but ranks 0,2-3 do not answer: `%hvd stacks` shows where, "
                "`%hvd respawn 0,2-3 --force` replaces them\n"
            ),
        ),
        (
            Respawned((2,), 0, ("model", "opt")),
            "rank 2 is fresh: it has model, opt from rank 0; other variables are missing\n",
        ),
        (
            Respawned((0, 1, 3), 2, ("a",), {"b": "is not defined there"}),
            (
                "ranks 0-1,3 are fresh: they have a from rank 2; other variables are missing\n"
                "`b` could not be restored: is not defined there\n"
            ),
        ),
    ],
)
def test_messages_of_the_change(done: Respawned, text: str) -> None:
    assert respawn_outcome(done) == text


def test_missing_kept_names_are_reported_with_the_remedy() -> None:
    assert respawn_outcome(Respawned((1,), 0)).startswith("rank 1 is fresh: its variables are missing: run the cells")
    assert respawn_outcome(Respawned((1, 2), 0)).startswith(
        "ranks 1-2 are fresh: their variables are missing: run the cells"
    )


def test_names_are_kept_once_in_order_and_forgotten_together() -> None:
    notebook.keep("opt", "model")
    notebook.keep("model")
    assert notebook.kept_names() == ["model", "opt"]
    with pytest.raises(ValueError, match=r"keep\('a b'\) must be given names of variables"):
        notebook.keep("a b")
    notebook.keep()
    assert notebook.kept_names() == []


def test_rendezvous_hides_its_secret() -> None:
    rendezvous = Rendezvous(1, 4, "127.0.0.1", 4321, "s3cret", {})
    said = rendezvous.over({"HVD_BOOTSTRAP": "mpi", "OTHER": "kept"})
    assert said["HVD_BOOTSTRAP"] == "tcp"
    assert (said["HOROVOD_RANK"], said["HOROVOD_SIZE"], said["OTHER"]) == ("1", "4", "kept")
    assert lookup.engine_options(said)["secret"] == "s3cret"
    assert "s3cret" not in repr(rendezvous)
    assert "s3cret" not in os.environ.values()


@pytest.mark.parametrize(
    ("dead", "text"),
    [
        ((), "all ranks live, and meet again before the next cell"),
        ((2,), "rank 2 is still dead, and `%hvd respawn` replaces it"),
        ((1, 2, 3), "ranks 1-3 are still dead, and `%hvd respawn` replaces them"),
    ],
)
def test_interrupted_respawn_reports_its_outcome(dead: tuple[int, ...], text: str) -> None:
    def press(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    session = SimpleNamespace(respawn=press, dead=dead)
    context: Any = SimpleNamespace(
        manager=SimpleNamespace(current=lambda: session), writer=lambda: SimpleNamespace(status=lambda: print)
    )
    with pytest.raises(KeyboardInterrupt) as interrupted:
        respawn_ranks(context)
    assert str(interrupted.value) == f"the respawn was interrupted: {text}"


def test_free_memory_is_limited_by_the_machine() -> None:
    assert 0 < free_memory() <= os.sysconf("SC_PAGESIZE") * os.sysconf("SC_PHYS_PAGES")


NOBODY = """
import socket, subprocess, sys
from hvd_kernel.processes.channel.control_channel import ControlChannel
ours, theirs = socket.socketpair()
spare = subprocess.Popen([sys.executable, "-P", "-m", "hvd_kernel.worker", "now", "1"], stdin=theirs.fileno())
theirs.close()
channel = ControlChannel(ours, ours)
while not (said := channel.receive()):
    pass
print(said)
channel.close()
print(spare.wait())
"""


def test_unneeded_standby_rank_exits() -> None:
    ended = subprocess.run([sys.executable, "-P", "-c", NOBODY], capture_output=True, text=True, check=True)
    assert ended.stdout == "[Preloaded()]\n0\n", ended.stderr


def supervisor_of(started: list[int]) -> Supervisor:
    """A supervisor without mpiexec and without a kernel."""
    supervisor = object.__new__(Supervisor)
    spares = SimpleNamespace(
        put=lambda rank, _engine: started.append(rank) or 4711, renumber=lambda *_: None, replacements=[]
    )
    vars(supervisor).update(
        loop=EventLoop(), controller=None, _deadline=None, _to_start=[], _mps_ranks=0, _engine={}, _detachment=None
    )
    vars(supervisor)["_spares"] = spares
    return supervisor


@pytest.fixture
def nobody_expected() -> Iterator[None]:
    yield
    registration.expect_none()


@pytest.mark.usefixtures("nobody_expected")
def test_a_supervisor_sees_its_kernel_end_between_starts() -> None:
    """It started a thousand processes before it checked, and outlived the kernel."""
    started: list[int] = []
    supervisor = supervisor_of(started)
    kernel, end = os.pipe()
    os.close(end)  # as a pidfd whose process has ended: ready to be read
    supervisor.loop.add_reader(kernel, supervisor.loop.stop)
    supervisor._replace(messages.ReplaceRanks([*range(1000)]))
    supervisor.loop.run()
    assert started == [0]
    supervisor.loop.close()
    os.close(kernel)


@pytest.mark.usefixtures("nobody_expected")
def test_a_resize_drops_replacements_that_have_not_started() -> None:
    started: list[int] = []
    supervisor = supervisor_of(started)
    supervisor._replace(messages.ReplaceRanks([2, 3, 4]))
    supervisor._renumber(messages.Resized(2, {0: 0, 1: 1}))
    supervisor._replace(messages.ReplaceRanks([5]))
    supervisor.loop.call_later(0.01, supervisor.loop.stop)
    supervisor.loop.run()
    assert started == [2, 5]
    supervisor.loop.close()
