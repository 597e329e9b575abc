"""hvdrun --mpi: MPI starts the ranks, and all else is as without it (test_hvdrun*.py check that, nightly for both)."""

from __future__ import annotations

import io
import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from hvdtest.cluster import until
from hvdtest.hosts import Hosts, why_not
from hvdtest.hvdrun import HVDRUN, NIGHTLY, RANK, SUM, gone, good, hvdrun, lines_of, order, processes_with
from hvdtest.launch import clean_environment

from hvd_kernel.core.topology import LATE_OVER_MPI
from hvd_kernel.launch.agents import AgentHandle, Agents
from hvd_kernel.launch.job_run import Job, launch
from hvd_kernel.launch.launchers.mpi import Mpiexec
from hvd_kernel.launch.line_output import OutputStream
from hvd_kernel.launch.monitor import JobMonitor, RankMonitor
from hvd_kernel.launch.placement import Host
from hvd_kernel.processes.channel import messages as m
from hvd_kernel.processes.channel.control_channel import ControlChannel
from hvd_kernel.processes.channel.messages import MPIEXEC

pytestmark = pytest.mark.mp


def shared_memory_of(said: str) -> Path:
    """The folder that hvdrun --verbose names in mpiexec's command."""
    found = re.search(r"btl_sm_backing_directory (/dev/shm/hvd-\w+)", said)
    assert found, said
    return Path(found[1])


def test_ranks_started_by_mpi(mark: str) -> None:
    script = SUM + "from mpi4py import MPI; import os\nprint(MPI.COMM_WORLD.rank, MPI.COMM_WORLD.size, [*os.environ])"
    text = good(hvdrun("-np", "3", "--mpi", "--mpi-args", "-bind-to none --mca mpi_show_handle_leaks 0", script=script))
    for rank in range(3):
        first, second = lines_of(text, rank)
        assert first == f"{rank} 3 {rank} 3 1 6.0"
        assert second.startswith(f"{rank} 3 [")
        assert "PMIX_RANK" in second
        assert "HVD_LAUNCHER_ADDRESS" not in second, "that is the agent's"


@NIGHTLY
def test_ranks_of_mpi_share_the_cores(mark: str) -> None:
    env = {k: v for k, v in clean_environment().items() if not k.startswith(("OMP_", "OPENBLAS_"))}
    command = [*HVDRUN, "-np", "2", "--mpi", "sh", "-c", "echo $OMP_NUM_THREADS"]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60, check=True)
    share = str(max(1, len(os.sched_getaffinity(0)) // 2))
    assert sorted(done.stdout.splitlines()) == [f"[{rank}]<stdout>:{share}" for rank in range(2)]


@pytest.mark.parametrize(
    ("end", "status", "said"),
    [
        pytest.param("os._exit(7)", 7, "rank 1 failed (exit status 7)", marks=NIGHTLY),
        ("MPI.COMM_WORLD.Abort(9)", 9, "rank 1 failed (exit status 9)"),
        pytest.param("os.kill(os.getpid(), 11)", 139, "rank 1 died: segmentation fault (SIGSEGV)", marks=NIGHTLY),
    ],
)
def test_a_rank_that_fails_under_mpi(mark: str, end: str, status: int, said: str) -> None:
    script = f"""
from mpi4py import MPI
import os, time
if MPI.COMM_WORLD.rank == 1:
    {end}
time.sleep(300)  # more than hvdrun() waits
"""
    done = hvdrun("-np", "2", "--mpi", "--verbose", script=script)
    assert done.returncode == status, done.stderr
    assert done.stderr.splitlines()[-1] == f"hvdrun: {said}; all ranks have ended."
    assert not shared_memory_of(done.stderr).exists()


@NIGHTLY
def test_exit_of_every_rank_is_known_under_mpi(mark: str, tmp_path: Path) -> None:
    """Rank 0 holds one end of a pipe until its process ends, and rank 1, which would have it ended, waits for that."""
    fifo = tmp_path / "rank0"
    os.mkfifo(fifo)
    script = f"""{RANK}
import time
if rank == 0:
    os.open({str(fifo)!r}, os.O_WRONLY)
if rank == 1:
    os.read(os.open({str(fifo)!r}, os.O_RDONLY), 1)
    raise SystemExit(3)
if rank == 2:
    time.sleep(120)
"""
    job = Job([sys.executable, "-P", "-c", script], 3, use_mpi=True)
    outcome = launch(job, stdout=io.StringIO(), stderr=io.StringIO())
    assert (outcome.codes, outcome.failed, outcome.status) == ((0, 3, -15), 1, 3)


@NIGHTLY
def test_mpiexec_that_ends_before_its_ranks(mark: str) -> None:
    script = (
        RANK
        + """
import signal, time
from pathlib import Path
agent = Path(f"/proc/{os.getppid()}/stat").read_text()
if rank == 0:
    os.kill(int(agent.rpartition(")")[2].split()[1]), signal.SIGTERM)
time.sleep(60)
"""
    )
    done = hvdrun("-np", "2", "--mpi", script=script)
    assert done.returncode == 1
    assert "hvdrun: mpiexec ended the ranks, none of which had failed. It said" in done.stderr


def test_mpiexec_that_does_not_start(mark: str) -> None:
    done = hvdrun("-np", "2", "--mpi", "--mpi-args", "--no-such-option", script="print('never')")
    assert (done.returncode, done.stdout) == (1, "")
    assert re.match(r"hvdrun: mpiexec ended \(\d+\) when 0 of 2 ranks were up\. It said:\n", done.stderr)
    assert "no-such-option" in done.stderr


@NIGHTLY
@pytest.mark.skipif(bool(why_not()), reason=why_not())
def test_a_rank_on_another_machine(mark: str, tmp_path: Path) -> None:
    """Its agent connects over TCP and sends all messages there."""
    script = "echo I am $OMPI_COMM_WORLD_RANK; [ $OMPI_COMM_WORLD_RANK = 0 ] || { ip -o -4 addr; exit 5; }; sleep 60"
    with Hosts(2) as hosts, hosts.inside(0):
        done = hvdrun("--mpi", "-H", "10.77.0.1:1,10.77.0.2:1", "sh", "-c", script, **hosts.ssh(tmp_path))
    assert done.returncode == 5, done.stdout + done.stderr
    assert lines_of(done.stdout, 0) == ["I am 0"]
    first, *addresses = lines_of(done.stdout, 1)
    assert first == "I am 1"
    assert any("10.77.0.2/" in line for line in addresses)
    assert done.stderr.splitlines()[-1] == "hvdrun: rank 1 failed (exit status 5); all ranks have ended."


@NIGHTLY
@pytest.mark.skipif(bool(why_not()), reason=why_not())
@pytest.mark.parametrize("transport", ["auto", "mpi"])
def test_hosts_with_a_common_address_reach_each_other(mark: str, tmp_path: Path, transport: str) -> None:
    """At Docker's address, the first one of each host, a rank reached itself: MPI and init() waited forever."""
    script = (
        SUM
        + """
from mpi4py import MPI
found = np.zeros(100_000)
MPI.COMM_WORLD.Allreduce(np.full(100_000, session.rank() + 1.0), found)
print(sorted(set(found.tolist())), [session.engine().transport_to(peer) for peer in range(3) if peer != session.rank()])
"""
    )
    links = [["shm", "tcp"], ["shm", "tcp"], ["tcp", "tcp"]] if transport == "auto" else [["mpi", "mpi"]] * 3
    with Hosts(2, docker=True) as hosts, hosts.inside(0):
        words = ["--mpi", "-H", "10.77.0.1:2,10.77.0.2:1"]
        text = good(hvdrun(*words, script=script, HVD_TRANSPORT=transport, **hosts.ssh(tmp_path)))
    for rank, place in enumerate(["0 2 2", "1 2 1", "0 1 2"]):
        assert lines_of(text, rank) == [f"{rank} 3 {place} 6.0", f"[6.0] {links[rank]}"]


@NIGHTLY
@pytest.mark.skipif(bool(why_not()), reason=why_not())
def test_two_hosts_of_one_name_are_refused(mark: str, tmp_path: Path) -> None:
    """Open MPI would not distinguish them: its allreduce gave one rank a wrong sum and did not return on the other."""
    with Hosts(2, name="twin") as hosts, hosts.inside(0):
        done = hvdrun("--mpi", "-H", "10.77.0.1:1,10.77.0.2:1", script="print('never')", **hosts.ssh(tmp_path))
    assert (done.returncode, done.stdout) == (1, "")
    assert "ranks 0 and 1 are on different hosts which are both called 'twin'" in done.stderr


@NIGHTLY
def test_a_failure_under_mpi_releases_the_waiting_ranks(mark: str) -> None:
    """The exit of a waiting rank ends all ranks, though MPI_Finalize would wait for the failed one."""
    script = """
from mpi4py import MPI
import os, time
os.environ["HVD_START_TIMEOUT"] = "1"
from hvd_kernel.core import session
if MPI.COMM_WORLD.rank == 1:
    time.sleep(3600)
session.init()
"""
    done = hvdrun("-np", "2", "--mpi", script=script)
    assert done.returncode == 1, done.stdout + done.stderr
    late = LATE_OVER_MPI.format(size=2, seconds=1, rank=0, host=socket.gethostname())
    assert late in lines_of(done.stderr, 0, "stderr")[-1]
    assert done.stderr.splitlines()[-1] == "hvdrun: rank 0 failed (exit status 1); all ranks have ended."


@NIGHTLY
def test_output_of_mpiexec_itself_is_shown(mark: str) -> None:
    done = hvdrun("-np", "1", "--mpi", "--mpi-args", "--display map", script="print('ran')")
    assert good(done) == "[0]<stdout>:ran\n"
    assert "JOB MAP" in done.stderr


class Told(AgentHandle):
    """A fake agent that records its commands; the test chooses its messages."""

    def __init__(self, agents: Agents, *, holds_ranks: bool) -> None:
        ours, self.theirs = socket.socketpair()
        super().__init__(agents, Host("localhost", 1), ControlChannel(ours, ours))
        self.holds_ranks, self.told, self.released = holds_ranks, [], False

    def send(self, message: m.Message) -> None:
        self.told.append(message)

    def release(self) -> None:
        self.released = True

    def hang_up(self) -> None:
        self.channel.close()
        self.theirs.close()


def test_late_output_of_mpiexec_is_written() -> None:
    """Its messages about the end of the agents are dropped: hvdrun ends them."""
    agents = Agents()
    holder, agent = Told(agents, holds_ranks=False), Told(agents, holds_ranks=True)
    said: list[bytes] = []
    mpiexec = Mpiexec(said.append)
    outputs = [
        (OutputStream(said.append, bytes, None, holds=False), OutputStream(said.append, bytes, None, holds=True))
    ]
    monitor = RankMonitor([agent], 0, 1, said.append, watches=False)
    job = JobMonitor(agents, outputs, [agent], 5.0, mpiexec, monitor=monitor, on_sample=lambda _: None)
    job.handle(agent, m.RankExited(0, 0))
    assert (holder.told, agent.released) == ([m.Flush()], False)
    job.handle(holder, m.Output(MPIEXEC, "stderr", b"JOB MAP\n"))
    job.handle(holder, m.Flushed())
    assert agent.released
    job.handle(holder, m.Output(MPIEXEC, "stderr", b"an agent has ended\n"))
    for one in (agent, holder):
        one.theirs.close()
    job.run(-1, None)
    mpiexec.close()
    agents.end()
    assert said == [b"JOB MAP\n"]


def test_agent_sends_all_output_received_so_far(mark: str, tmp_path: Path) -> None:
    spoken, agents = tmp_path / "spoken", Agents()
    command = ["sh", "-c", f"echo one; echo two >&2; touch {spoken}; exec sleep 120"]
    try:
        agents.start([Host("localhost", 1)], None, None, 60)
        agents.every[0].send(order(command, tmp_path, MPIEXEC))
        until(spoken.exists)
        agents.every[0].send(m.Flush())
        received: list[m.Message] = []
        agents.on_message = lambda _, message: received.append(message)
        assert agents.run_until(lambda: m.Flushed() in received, 60)
        said = [message for message in received if isinstance(message, m.Output)]
        text = {name: b"".join(each.data for each in said if each.stream == name) for name in ("stdout", "stderr")}
        assert text == {"stdout": b"one\n", "stderr": b"two\n"}
        assert received[-1] == m.Flushed()
    finally:
        agents.end()


@pytest.mark.parametrize("number", [pytest.param(signal.SIGINT, marks=NIGHTLY), signal.SIGKILL])
def test_end_of_the_launcher_ends_mpi(mark: str, number: int) -> None:
    script = """
from mpi4py import MPI
import time
print("up", MPI.COMM_WORLD.size, flush=True)
time.sleep(120)
"""
    job = subprocess.Popen(
        [*HVDRUN, "-np", "2", "--mpi", "--verbose", sys.executable, "-P", "-c", script],
        env=clean_environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert job.stdout is not None
    assert job.stderr is not None
    assert {job.stdout.readline(), job.stdout.readline()} == {f"[{r}]<stdout>:up 2\n" for r in range(2)}
    job.send_signal(number)
    assert job.wait(60) == (130 if number == signal.SIGINT else -9)
    assert gone(mark, 0.0 if number == signal.SIGINT else 30.0), processes_with(mark)
    assert not shared_memory_of(job.stderr.read()).exists()
    job.stdout.close()
    job.stderr.close()
