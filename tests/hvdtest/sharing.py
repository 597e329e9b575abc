"""One kernel or cluster for all tests that need the same, ``@pytest.mark.cluster(4, env={...})``: the same ranks, the same
environment. Starting one takes seconds; tidying up after a test takes a tenth of one.

Terms.
  needs     what a test asks for: a kernel or a session, the number of ranks, the environment
  residue   what a test has left: jobs, processes, ports. It fails the test that has left it; names are only forgotten

One is open at a time, because ranks share few cores with everything else. It goes on from test to test as long as tests
pass; a test that fails, or that leaves dead ranks, leaves no trace but a start. Tests of equal needs run together.
"""

from __future__ import annotations

import json
import os
import re
import signal
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hvdtest import where
from hvdtest.cluster import Traces, execute, until
from hvdtest.kernel import Kernel
from hvdtest.surface import Listener, family, listeners
from hvdtest.tidy import RANK
from hvdtest.where import tagged

from hvd_kernel.cluster import Session
from hvd_kernel.processes.cluster_spec import ClusterSpec

FOLDERS = ("jupyter", "faults")
OURS = {"kernel", "supervisor", "launcher", "rank"}
STRANGERS_S = 10.0  # processes that a test has ended may take a moment to exit
TIDY = "print(__import__('json').dumps(__import__('hvdtest.tidy').tidy.kernel(get_ipython())))"


@dataclass(frozen=True)
class Needs:
    """Needs of tests that share a kernel. ``ranks`` 0: a kernel whose ranks a test may start and stop."""

    what: str
    ranks: int
    env: tuple[tuple[str, str], ...] = ()


def needs_of(item: pytest.Item) -> Needs | None:
    """Return the needs of a test; None if it starts its own."""
    mark = item.get_closest_marker("cluster")
    what = next((name for name in ("kernel", "session") if name in getattr(item, "fixturenames", ())), "")
    if mark is None or not what:
        return None
    return Needs(what, mark.args[0], tuple(sorted(mark.kwargs.get("env", {}).items())))


@dataclass
class Shared:
    """The open kernel or cluster."""

    needs: Needs
    home: Path
    tag: str  # by which its processes are found: see hvdtest/where.py
    kernel: Kernel | None = None
    session: Session | None = None
    traces: Traces | None = None
    ports: list[Listener] = field(default_factory=list)

    def broken(self) -> bool:
        """Return whether the next test needs another kernel or cluster."""
        if self.kernel is not None:
            return self.kernel.ended or not self.kernel.manager.is_alive()
        assert self.session is not None
        return bool(self.session.dead) or self.session.running


_open: list[Shared] = []


def shared(needs: Needs, home: Path) -> Shared:
    """Return the open kernel or cluster if it works, else a new one."""
    if _open and (_open[0].needs != needs or _open[0].broken()):
        close()
    if not _open:
        _open.append(_opened(needs, home))
    return _open[0]


def _opened(needs: Needs, home: Path) -> Shared:
    if needs.what == "kernel":
        kernel = Kernel(home, env={"HVD_SPARES": "0", **dict(needs.env)})
        kernel.__enter__()
        kernel.run("__import__('hvdtest.tidy');")  # which takes note of the environment
        return Shared(needs, home, kernel.tag, kernel)
    tag = uuid.uuid4().hex
    env = {"HVD_SPARES": "0", "HVD_TEST_TAG": tag, **where.traced(home / "stacks"), **dict(needs.env)}
    with pytest.MonkeyPatch.context() as patch:
        for name, value in env.items():
            patch.setenv(name, value)
        session = Session.start(ClusterSpec(needs.ranks))
    return Shared(needs, home, f"HVD_TEST_TAG={tag}", session=session, traces=Traces.of(session))


def close() -> None:
    """Stop the open kernel or cluster; it must leave nothing unless it was broken."""
    while _open:
        one = _open.pop()
        if one.kernel is not None:
            sound = not one.broken()
            one.kernel.__exit__(None if sound else RuntimeError, None, None)
            where.end_all(one.tag)
        if one.session is not None:
            assert one.traces is not None
            one.session.stop()
            one.traces.wait_none_left()


def abandon(error: BaseException | None) -> None:
    """After a failed test: if it hung, add the stacks of all processes to its error; kill them."""
    while _open:
        one = _open.pop()
        if error is not None and where.hangs(error):
            where.add_stacks(error, one.tag, one.home / "stacks")
        where.end_all(one.tag)
        if one.kernel is not None:
            one.kernel.client.stop_channels()
            one.kernel.manager.shutdown_kernel(now=True)
        elif one.session is not None:
            one.session.stop()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Within a folder, tests of equal needs one after the other."""
    root = Path(__file__).parents[1]
    for folder in FOLDERS:
        places = [at for at, item in enumerate(items) if root / folder in item.path.parents]
        groups: dict[Needs | None, list[pytest.Item]] = {}
        for at in places:
            groups.setdefault(needs_of(items[at]), []).append(items[at])
        for at, item in zip(places, [item for group in groups.values() for item in group], strict=True):
            items[at] = item


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> None:
    """Replace the ranks after a failed test; if it hung, report the stacks of all processes."""
    if call.excinfo is not None and not isinstance(call.excinfo.value, pytest.skip.Exception):
        abandon(call.excinfo.value)


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """Nothing is open beside tests that have no use for it."""
    if nextitem is None or needs_of(nextitem) != needs_of(item):
        close()


@pytest.fixture
def kernel(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kernel]:
    """The kernel of tests with these needs: its ranks are alive, and no name is that of another test."""
    mark = request.node.get_closest_marker("cluster")
    needs = needs_of(request.node)
    assert needs is not None, "say @pytest.mark.cluster(ranks)"
    one = shared(needs, tmp_path_factory.mktemp("kernel"))
    running = one.kernel
    assert running is not None
    _have(running, needs.ranks)
    if figures := mark.kwargs.get("figures"):
        running.run(f"__import__('hvdtest.tidy').tidy.figures({figures!r})")
    for cell in mark.kwargs.get("setup", ()):
        running.run(cell)
    yield running
    if _open and not running.ended:
        _tidy(one, running)


def _have(kernel: Kernel, ranks: int) -> None:
    """Have that many living ranks."""
    if not ranks:
        kernel.run("%hvd stop")
        return
    rows = re.findall(r"^ *\d+ +(alive|dead)\b", kernel.run("%hvd status").text(), re.MULTILINE)
    alive, dead = rows.count("alive"), rows.count("dead")
    if dead and alive and alive + dead == ranks:
        kernel.run("%hvd respawn", timeout=120)
    elif alive != ranks:
        kernel.run(f"%hvd restart -np {ranks}", timeout=120)


@pytest.fixture
def session(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Session]:
    """The session of tests with these needs, in this process: as ``kernel``."""
    needs = needs_of(request.node)
    assert needs is not None, "say @pytest.mark.cluster(ranks)"
    running = shared(needs, tmp_path_factory.mktemp("session")).session
    assert running is not None
    for code in request.node.get_closest_marker("cluster").kwargs.get("setup", ()):
        execute(running, code)
    yield running
    if not _open:
        return
    if len(running.dead) == running.n:
        return  # the next test has others
    if running.dead:
        running.respawn()
    assert not running.running, "left by this test: a cell that still runs"
    execute(running, RANK)


@pytest.fixture(autouse=True)
def no_spare(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Start no spare by default, since it imports torch during the test: ``@pytest.mark.spare`` requests one."""
    monkeypatch.setenv("HVD_SPARES", "1" if request.node.get_closest_marker("spare") else "0")


def _tidy(one: Shared, kernel: Kernel) -> None:
    """Forget names, and fail for everything else that the test has left."""
    for channel in (kernel.client.stdin_channel, kernel.client.control_channel):
        while channel.msg_ready():
            channel.get_msg(timeout=1)
    left = json.loads(kernel.run(TIDY).text())
    try:
        until(lambda: not _strangers(kernel), patience=STRANGERS_S)
    except AssertionError:
        strangers = _strangers(kernel)
        left += [f"process {pid} ({name.strip()})" for pid, name in strangers.items()]
        for pid in strangers:
            os.kill(pid, signal.SIGKILL)
    ports = [each for each in listeners([kernel.pid]) if each.kind != "unix"]
    one.ports = one.ports or ports
    left += [f"port {each.port}" for each in ports if each not in one.ports]
    assert not left, f"left by this test: {', '.join(left)}"


def _strangers(kernel: Kernel) -> dict[int, str]:
    """Processes that neither the kernel nor its cluster needs."""
    rooms = family(kernel.pid)
    return {pid: name for pid, name in tagged(kernel.tag).items() if rooms.get(pid) not in OURS}


@pytest.fixture
def own() -> Iterator[Session]:
    """A cluster of two ranks for one test, which may give it another size; it leaves nothing."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HVD_SPARES", "0")
        session = Session.start(ClusterSpec(2))
        yield session
    traces = Traces.of(session)
    session.stop()
    traces.wait_none_left()
