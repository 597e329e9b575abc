"""The lifecycle of a cluster: how it starts, what others can see, and that no process is left after any end."""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hvdtest.cluster import Traces, cpu_share, execute, living, processes_below, spares_of, until, wait_for_spares
from hvdtest.kernel import Kernel
from hvdtest.surface import family, listeners, proc_file
from hvdtest.where import tagged

from hvd_kernel.cluster import Session, launcher
from hvd_kernel.cluster.launcher import environment
from hvd_kernel.cluster.requests.stream import Stream
from hvd_kernel.errors import ClusterError
from hvd_kernel.processes.channel.control_channel import ControlChannel
from hvd_kernel.processes.cluster_spec import ClusterSpec
from hvd_kernel.processes.open_mpi import is_far

pytestmark = [pytest.mark.jupyter, pytest.mark.mp]

KERNEL = """
import json, os, sys, time
from pathlib import Path
from hvdtest.cluster import Traces, wait_until_all_speak
from hvd_kernel.cluster import Session
from hvd_kernel.processes.cluster_spec import ClusterSpec
session = Session.start(ClusterSpec(2))
code, waits = sys.argv[1], sys.argv[2]
if code:
    run = session.run(code)
    wait_until_all_speak(run)
    while waits and (1 not in session.metrics or session.metrics[1].state != waits): run.next(0.1)
traces = Traces.of(session)
print(json.dumps(traces.as_dict() | {"ranks": [s.pid for s in session.status()]}), flush=True)
exec(sys.argv[3])
"""


def kernel(
    code: str, then: str = "time.sleep(600)", waits: str = ""
) -> tuple[subprocess.Popen[str], Traces, list[int]]:
    """A process that stands for the notebook's kernel, with a cluster of two ranks; in its cell rank 1 waits so."""
    tests = Path(__file__).parents[2]
    path = os.pathsep.join(filter(None, (str(tests), os.environ.get("PYTHONPATH", ""))))
    process = subprocess.Popen(
        [sys.executable, "-c", KERNEL, code, waits, then],
        env=os.environ | {"PYTHONPATH": path},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        raise AssertionError(f"the kernel ended with {process.wait()}")
    said = json.loads(line)
    ranks = said.pop("ranks")
    return process, Traces(**{name: set(value) for name, value in said.items()}), ranks


IN = "print('in', flush=True)\n"
CELLS = {
    "idle": "",
    "busy": f"{IN}while True: pass",
    "asleep": f"{IN}import time; time.sleep(600)",
    "in a collective": f"{IN}hvd.barrier() if rank else __import__('time').sleep(600)",
    "with a daemon of its own": "import subprocess, time\n"
    f"subprocess.Popen(['setsid', 'sleep', '600'], start_new_session=True)\n{IN}time.sleep(600)",
}
BY_DAY = {"in a collective", "with a daemon of its own"}


@pytest.mark.parametrize(
    "code",
    [pytest.param(code, id=name, marks=() if name in BY_DAY else pytest.mark.nightly) for name, code in CELLS.items()],
)
def test_kill_9_of_the_kernel_leaves_nothing(code: str) -> None:
    process, traces, _ = kernel(code, waits="collective" if "barrier" in code else "")
    assert len(traces.processes) >= 4
    process.kill()
    process.wait()
    traces.wait_none_left()


@pytest.mark.nightly
def test_kill_9_of_the_kernel_with_a_stopped_rank() -> None:
    process, traces, ranks = kernel("")
    os.kill(ranks[0], signal.SIGSTOP)
    process.kill()
    process.wait()
    traces.wait_none_left()


def test_kill_9_of_the_kernel_while_the_cluster_starts() -> None:
    code = "from hvd_kernel.cluster import Session; from hvd_kernel.processes.cluster_spec import ClusterSpec; Session.start(ClusterSpec(2))"
    process = subprocess.Popen([sys.executable, "-c", code])
    until(lambda: {"supervisor", "launcher", "rank"} <= set(family(process.pid).values()), "the ranks are starting")
    traces = Traces(processes_below(process.pid), set(), set())
    process.kill()
    process.wait()
    traces.wait_none_left()


def test_kernel_that_ends_without_stopping() -> None:
    process, traces, _ = kernel("", then="pass")
    assert process.wait(30) == 0
    traces.wait_none_left()


@pytest.mark.nightly
def test_kernel_forked_a_child_that_lives_on() -> None:
    """A child of the kernel holds copies of its pipes: the end of the kernel must be noticed anyway."""
    process, traces, _ = kernel("", then="child = os.fork(); child and print(child, flush=True); time.sleep(600)")
    assert process.stdout is not None
    child = int(process.stdout.readline())
    try:
        process.kill()
        process.wait()
        traces.wait_none_left()
        assert living({child}) == {child}
    finally:
        os.kill(child, signal.SIGKILL)


PRESSED = """
import os, signal, threading
from hvd_kernel.cluster import Session
from hvd_kernel.processes.cluster_spec import ClusterSpec
from hvdtest.cluster import living, processes_below, until
from hvdtest.surface import family
def press():
    found = []
    rank = lambda: [pid for pid, room in family(os.getpid()).items() if room == "rank"]
    until(lambda: found.extend(rank()) or found, "a rank is starting")
    os.kill(found[0], signal.SIGSTOP)  # so that the start has no end
    os.kill(os.getpid(), signal.SIGINT)
pressing = threading.Thread(target=press)
try:
    pressing.start(); Session.start(ClusterSpec(2)); pressing.join()
except KeyboardInterrupt:
    print('left', living(processes_below(os.getpid())))
"""


def test_interrupt_while_starting_leaves_nothing() -> None:
    tests = str(Path(__file__).parents[2])
    path = os.pathsep.join(filter(None, (tests, os.environ.get("PYTHONPATH", ""))))
    ended = subprocess.run(
        [sys.executable, "-c", PRESSED],
        env=os.environ | {"PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert ended.stdout == "left set()\n", ended.stderr


@pytest.mark.nightly
def test_interrupt_once_the_supervisor_exists_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    begin, begun = launcher.begun, []

    def press(*how: Any) -> tuple[subprocess.Popen[bytes], ControlChannel, Path, Path]:
        begun.append(begin(*how))
        signal.raise_signal(signal.SIGINT)
        return begun[0]

    monkeypatch.setattr(launcher, "begun", press)
    with pytest.raises(KeyboardInterrupt):
        Session.start(ClusterSpec(2))
    pid = begun[0][0].pid
    assert not living({pid} | processes_below(pid))


def test_ranks_with_a_lost_registration_notice_are_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """A rank could register between the hub's first answer and our subscription, and was never announced."""
    monkeypatch.setattr(Stream, "_dispatch_notification", lambda *_: None)
    started = Session.start(ClusterSpec(2, start_timeout_s=60.0))
    assert [each.rank for each in started.status()] == [0, 1]
    started.stop()


@pytest.mark.nightly
def test_stop_waits_for_a_slow_supervisor(monkeypatch: pytest.MonkeyPatch) -> None:
    """No other process would stop what a cell has detached."""
    monkeypatch.setattr(launcher, "_STOP_S", 0.0)  # as if it had taken longer
    started = Session.start(ClusterSpec(1))
    cell = "import subprocess\nsubprocess.Popen(['sleep', '600'], start_new_session=True).pid"
    detached = set(execute(started, cell).run.values().values())
    started.stop()
    assert not living(detached)


WITH_A_SPARE = pytest.mark.cluster(2, env={"HVD_SPARES": "1"})


@WITH_A_SPARE
@pytest.mark.nightly
def test_cluster_is_ranks_supervisor_launcher_and_spare(session: Session) -> None:
    wait_for_spares(session, 1)
    supervisor = session.supervisor
    ranks = {status.pid for status in session.status()}
    found = {pid: name for pid, name in family(supervisor).items() if living({pid})}
    assert found.pop(supervisor) == "supervisor"
    (spare,) = spares_of(session)
    assert sorted(found[pid] for pid in found.keys() - ranks - {spare}) == ["launcher"], found
    assert ranks < found.keys()


@WITH_A_SPARE
def test_private_files(session: Session) -> None:
    folder = session.executor.launched.folder
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert stat.S_IMODE(session.executor.launched._shared.stat().st_mode) == 0o700
    assert stat.S_IMODE(session.executor.launched.log.stat().st_mode) == 0o600
    key = session._wire._config["key"]
    server = session._wire._config["curve_serverkey"]
    assert len(key) == 64
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert files
    for path in files:
        text = path.read_bytes()
        assert key.encode() not in text
        assert server.encode() not in text
    for pid in processes_below(os.getpid()):
        for name in ("cmdline", "environ"):
            text = proc_file(pid, name)
            assert key.encode() not in text
            assert server.encode() not in text


@WITH_A_SPARE
def test_no_rank_and_no_controller_listens_to_the_network(session: Session) -> None:
    """Two sockets of mpiexec itself are the exception: Open MPI's launcher has no setting for them."""
    ours = [each for each in listeners(family(session.supervisor)) if each.room != "launcher" and each.kind != "unix"]
    assert ours
    assert [each for each in ours if each.address != "127.0.0.1"] == []


@pytest.mark.nightly
@WITH_A_SPARE
def test_idle_cluster_uses_no_cpu(session: Session) -> None:
    execute(session, "1")
    wait_for_spares(session, 1)
    pids = processes_below(session.supervisor) | {session.supervisor}
    # It has ended a cell and made a spare, and may still be busy; a polling process is never idle.
    until(lambda: cpu_share(pids, 2.0) < 0.05, "it is quiet")


@WITH_A_SPARE
def test_cores_are_shared(session: Session) -> None:
    each = str(max(1, len(os.sched_getaffinity(0)) // 2))
    assert execute(session, "import os; os.environ['OMP_NUM_THREADS']").run.values() == dict.fromkeys(range(2), each)


def test_controller_side_imports_light() -> None:
    code = (
        "import sys, hvd_kernel.cluster\n"
        "print(sorted(m for m in ('torch', 'mpi4py', 'hvd_kernel._native', 'ipyparallel', 'numpy') if m in sys.modules))"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ended.stdout == "[]\n"


def test_running_cluster_keeps_the_kernel_clean() -> None:
    then = "import sys; print(sorted(m for m in ('torch', 'mpi4py', 'hvd_kernel._native') if m in sys.modules)); session.stop()"
    process, traces, _ = kernel("", then=then)
    assert process.stdout is not None
    assert process.stdout.read() == "[]\n"
    process.wait(30)
    traces.wait_none_left()


def test_failed_start_reports_the_reason() -> None:
    with pytest.raises(ClusterError, match=r"(?s)ended while they started.*last output.*no-such-option"):
        Session.start(ClusterSpec(2, mpi_args=("--no-such-option",)))
    with pytest.raises(ClusterError, match=r"(?s)did not come up within 0.3 s"):
        Session.start(ClusterSpec(2, start_timeout_s=0.3))


@pytest.mark.nightly
def test_start_reports_progress() -> None:
    said: list[str] = []
    cluster = Session.start(ClusterSpec(1), said.append)
    try:
        assert said[0] == "starting 1 rank"
        assert said[-1] == "1 rank ready"
        assert execute(cluster, "hvd.allreduce(hvd.size() * __import__('torch').ones(1)).tolist()").run.values() == {
            0: [1.0]
        }
    finally:
        cluster.stop()
    with pytest.raises(ClusterError, match="%hvd start"):
        cluster.run("1")


def test_variables_of_a_launcher_around_the_kernel_are_ignored(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("OMPI_COMM_WORLD_RANK", "PMIX_RANK", "RANK", "MASTER_PORT", "HOROVOD_RANK"):
        monkeypatch.setenv(name, "3")
    monkeypatch.setenv("HOROVOD_FUSION_THRESHOLD", "0")
    kept = environment(tmp_path)
    assert not {"OMPI_COMM_WORLD_RANK", "PMIX_RANK", "RANK", "MASTER_PORT", "HOROVOD_RANK"} & set(kept)
    assert kept["HOROVOD_FUSION_THRESHOLD"] == "0"


def test_remote_hosts_are_recognised() -> None:
    assert not is_far(ClusterSpec(2))
    assert not is_far(ClusterSpec(2, hosts="localhost:4,127.0.0.1:2"))
    assert is_far(ClusterSpec(2, hosts="localhost:1,elsewhere:1"))


# %unload_ext hvd_kernel: magics, completion and ranks are gone, and loading again works.


def test_unload_ext_ends_the_ranks_and_removes_the_magics(tmp_path: Path) -> None:
    with Kernel(tmp_path, "python3") as kernel:
        kernel.run("%load_ext hvd_kernel")
        assert kernel.run("%%hvdrun -np 1\nsize").shown == ["[0] 1"]
        kernel.run("%unload_ext hvd_kernel")
        until(lambda: set(tagged(kernel.tag)) == {kernel.pid}, "the end of ranks, launcher and supervisor")
        left = "[name for kind in get_ipython().magics_manager.magics.values() for name in kind if 'hvd' in name]"
        assert kernel.run(left).shown == ["[]"]
        said = kernel.run("not_there", allow_error=True)
        assert said.reply["ename"] == "NameError"
        kernel.run("%load_ext hvd_kernel")
        assert kernel.run("%%hvdrun -np 1\nrank").shown == ["[0] 0"]
