"""The launcher's pure parts: hosts, variables, meeting place, frames, lines, the verdict, MPI's commands."""

from __future__ import annotations

import importlib
import shutil
import signal
import socket
import subprocess
import sys
import time
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest

from hvd_kernel.errors import ClusterError, ConfigError, UsageError
from hvd_kernel.launch import line_output, placement
from hvd_kernel.launch.cli import horovodrun, main
from hvd_kernel.launch.elastic.workers import Streams, Workers
from hvd_kernel.launch.job_run import Job, chosen_variables
from hvd_kernel.launch.launchers import mpi
from hvd_kernel.launch.line_output import OutputStream
from hvd_kernel.launch.monitor import sentence
from hvd_kernel.launch.outcome import FailedRank, exit_text, root_cause, shell_status
from hvd_kernel.launch.placement import (
    Host,
    carried,
    is_local,
    job_hosts,
    parse,
    places,
    rank_variables,
    read_hostfile,
    rendezvous_address,
)
from hvd_kernel.processes import open_mpi, ports
from hvd_kernel.processes.channel.control_channel import PREAMBLE, ControlChannel, pack
from hvd_kernel.processes.channel.messages import Hello, Output, RankExited


def test_the_launcher_loads_no_torch_mpi_or_extension() -> None:
    code = (
        "import sys, hvd_kernel.launch.cli.main, hvd_kernel.processes.agent; "
        "print([m for m in ('torch', 'numpy', 'mpi4py', 'hvd_kernel._native', 'ipyparallel') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, timeout=240, check=True)
    assert done.stdout.strip() == "[]"


def test_the_command_is_in_the_package() -> None:
    scripts = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text())["project"]["scripts"]
    module, _, name = scripts["hvdrun"].partition(":")
    assert getattr(importlib.import_module(module), name) is main.main
    assert "horovodrun" not in scripts, "a wheel must not overwrite a real Horovod's command"


# Hosts.


@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        ("a", [Host("a", 1)]),
        ("a:2,b:3", [Host("a", 2), Host("b", 3)]),
        (" a:2 , b ", [Host("a", 2), Host("b", 1)]),
        ("a:2,,b:1,", [Host("a", 2), Host("b", 1)]),
        ("10.0.0.1:4,user@node-1.example:1", [Host("10.0.0.1", 4), Host("user@node-1.example", 1)]),
    ],
)
def test_hosts(text: str, hosts: list[Host]) -> None:
    assert parse(text) == hosts


@pytest.mark.parametrize("text", ["a:", "a:x", "a:0", "a b:2", "-oProxyCommand=x:1"])
def test_wrong_hosts(text: str) -> None:
    with pytest.raises(ConfigError, match="is not a host"):
        parse(text)


@pytest.mark.parametrize("text", ["", ",", " , "])
def test_no_hosts(text: str) -> None:
    with pytest.raises(ConfigError, match="names no host"):
        parse(text)


def test_hostfile(tmp_path: Path) -> None:
    file = tmp_path / "hosts"
    file.write_text("# all\na slots=2\n\nb:3  # with a colon\nc\nd   slots = 4\n")
    assert read_hostfile(str(file)) == [Host("a", 2), Host("b", 3), Host("c", 1), Host("d", 4)]
    file.write_text("n1\nn1\n[fe80::1]:2\nn1\n")  # a scheduler's: one ssh for each host, not for each line
    assert read_hostfile(str(file)) == [Host("n1", 3), Host("fe80::1", 2)]
    file.write_text("a slots=2\na slot=2\n")
    with pytest.raises(ConfigError, match=r"hosts:2:3: 'slot' is unknown here: did you mean 'slots'\?"):
        read_hostfile(str(file))
    file.write_text("# none\n")
    with pytest.raises(ConfigError, match="names no host: write lines like `host slots=4`"):
        read_hostfile(str(file))
    with pytest.raises(ConfigError, match="cannot be read"):
        read_hostfile("/no/such/file")


def test_places_fill_host_by_host() -> None:
    hosts = [Host("a", 2), Host("b", 3)]
    assert places(hosts, 3) == [0, 0, 1]
    assert places(hosts, 5) == [0, 0, 1, 1, 1]
    with pytest.raises(ConfigError, match=r"np=6 ranks do not fit on a:2, b:3, which has 5 slot"):
        places(hosts, 6)
    assert job_hosts(None, None, 3) == [Host("localhost", 3)]
    with pytest.raises(ConfigError, match="both given"):
        job_hosts("a", "f", 1)


def test_this_host_has_many_names() -> None:
    assert all(is_local(name) for name in ("localhost", "127.0.0.1", "::1", "127.0.0.77", socket.gethostname()))
    assert not is_local("no-such-host.invalid")
    assert not is_local("192.0.2.1")


def test_impossible_jobs() -> None:
    for wrong, said in (({"np": 0}, "np=0"), ({"command": []}, "no command"), ({"mpi_args": ("-v",)}, "add --mpi")):
        with pytest.raises(ConfigError, match=said):
            Job(**{"command": ["x"], "np": 1, **wrong})


# Variables.


def test_environment_of_each_rank() -> None:
    variables = rank_variables(["m", "m", "n", "n", "n"], ["a", "a", "b", "b", "b"])
    keys = ("RANK", "HOSTNAME", "LOCAL_RANK", "LOCAL_SIZE", "CROSS_RANK", "CROSS_SIZE")
    assert [[env["HOROVOD_" + key] for key in keys] for env in variables] == [
        ["0", "a", "0", "2", "0", "2"],
        ["1", "a", "1", "2", "0", "2"],
        ["2", "b", "0", "3", "1", "2"],
        ["3", "b", "1", "3", "1", "2"],
        ["4", "b", "2", "3", "0", "1"],
    ]


def test_variables_that_are_not_forwarded() -> None:
    assert set(carried({"PATH": "p", "SSH_AUTH_SOCK": "s", "TMPDIR": "t", "FOO": "f"})) == {"PATH", "FOO"}


HERE = {
    "machine": "m",
    "port": 5,
    "networks": {"lo": "127.0.0.1/8", "docker0": "172.17.0.1/16", "eth0": "10.0.0.1/24"},
    "ssh": [],
    "name": "here",
}
FAR = {
    "machine": "n",
    "port": 6,
    "networks": {"docker0": "172.17.0.1/16", "eth0": "10.0.0.2/24"},
    "ssh": ["10.0.0.9", "1", "10.0.0.8", "22"],
    "name": "far",
}


@pytest.mark.parametrize(
    ("hellos", "remote", "interface", "found"),
    [
        ([HERE], [False], "", ("127.0.0.1", 5)),
        ([HERE, HERE | {"port": 7}], [False, True], "", ("127.0.0.1", 5)),
        ([HERE, FAR], [False, True], "", ("10.0.0.9", 5)),  # as the other side sees us
        ([HERE, FAR], [False, True], "eth0", ("10.0.0.1", 5)),
        ([FAR, HERE], [True, False], "", ("10.0.0.8", 6)),
        ([FAR, HERE], [True, False], "eth0", ("10.0.0.2", 6)),
        ([HERE, FAR | {"ssh": []}], [False, True], "", ("10.0.0.1", 5)),
        ([HERE | {"networks": {}}, FAR | {"ssh": []}], [False, True], "", ("here", 5)),
    ],
)
def test_address_of_the_rendezvous(
    hellos: list[dict], remote: list[bool], interface: str, found: tuple[str, int]
) -> None:
    assert rendezvous_address(hellos, remote, interface) == found


def test_a_kept_port_is_free_for_rank_0_alone() -> None:
    with ports.bound() as reserved, socket.socket() as other, socket.socket() as rank_0:
        port = reserved.getsockname()[1]
        with pytest.raises(OSError, match="in use"):
            other.bind(("127.0.0.1", port))
        rank_0.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        rank_0.bind(("127.0.0.1", port))
        rank_0.listen()
        socket.create_connection(("127.0.0.1", port), 5).close()


def test_port_in_use_is_not_reserved() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert not ports.reserve_port(port)
    assert ports.reserve_port(port)


# The control channel.


def test_fragmented_messages_after_a_greeting() -> None:
    sent = [Hello({"port": 1}), Output(3, "stderr", b"x\n\0" * 1000), RankExited(3, -9)]
    stream = b"Welcome!\n\x00hvd" + PREAMBLE + b"".join(map(pack, sent))
    for step in (1, 7, len(stream)):
        here, there = socket.socketpair()
        with here, there:
            channel = ControlChannel(here, here)
            found = [each for at in range(0, len(stream), step) for each in channel.feed(stream[at : at + step])]
        assert found == sent


# Lines.


class Heard:
    """An output stream and the text written to it."""

    def __init__(self, *, holds: bool = False) -> None:
        self.text = b""
        self.output = OutputStream(self.write, lambda: b"> ", None, holds=holds)

    def write(self, data: bytes) -> None:
        self.text += data


def test_lines_are_completed_before_they_are_written() -> None:
    heard = Heard()
    for piece in (b"a", b"b\nc", b"d\r", b"\ne\rf\n"):
        heard.output.write(piece)
    assert heard.text == b"> ab\n> cd\r\n> e\r> f\n"
    heard.output.write(b"rest")
    heard.output.close()
    assert heard.text.endswith(b"> f\n> rest\n")


def test_outputs_of_exited_workers_keep_no_file_open(tmp_path: Path) -> None:
    """An elastic job has many over its lifetime. Processes that a worker started may write later: that is in its file too."""

    def open_files() -> int:
        return len(list(Path("/proc/self/fd").iterdir()))

    workers = Workers(
        Streams(lambda _: None, lambda _: None, prefix=False, timestamp=False, folder=str(tmp_path), digits=2)
    )
    before = open_files()
    for number in range(30):
        worker = workers.add(number, None, 0)  # type: ignore[arg-type]
        worker.write("stdout", b"begun\nhalf")
        worker.end(1)
    assert open_files() == before
    workers[3].write("stdout", b" late\n")
    workers.close()
    assert open_files() == before
    files = [tmp_path / f"rank.{number:02d}" / "stdout" for number in range(30)]
    assert files[3].read_text() == "begun\nhalf late\n"
    assert {file.read_text() for file in files} == {"begun\nhalf", "begun\nhalf late\n"}


def test_endless_line_is_not_kept_indefinitely() -> None:
    heard = Heard()
    heard.output.write(b"x" * 70_000)
    assert heard.text == b"> " + b"x" * 70_000


def test_a_traceback_is_held_until_it_is_the_last_or_overdue() -> None:
    heard = Heard(holds=True)
    earliest = time.monotonic()
    heard.output.write(b"before\nTraceback (most recent call last):\n  File\nE: no\n")
    assert heard.text == b"> before\n"
    assert heard.output.tail == ("Traceback (most recent call last):", "  File", "E: no")
    assert not heard.output.overdue(earliest + 2.9)
    assert heard.output.overdue(time.monotonic() + 3.1)
    heard.output.release()
    assert heard.text == b"> before\n> Traceback (most recent call last):\n>   File\n> E: no\n"
    heard.output.write(b"after\n")
    assert heard.text.endswith(b"> after\n")
    assert heard.output.tail[0] == "before"


def test_held_flood_is_released() -> None:
    heard = Heard(holds=True)
    heard.output.write(b"Traceback (most recent call last):\n" + b"y" * 1000 + b"\n")
    heard.output.write((b"z" * 1000 + b"\n") * 300)
    assert heard.text.count(b"\n") == 302


def test_folders_sort_as_ranks_do(tmp_path: Path) -> None:
    assert [line_output.folder_of(str(tmp_path), rank, 11).name for rank in (0, 9, 10)] == [
        "rank.00",
        "rank.09",
        "rank.10",
    ]
    assert line_output.folder_of(str(tmp_path), 0, 1).name == "rank.0"


# The verdict.


def test_root_cause_is_the_first_independent_failure() -> None:
    told = FailedRank(0, 1, ("Traceback", "hvd_kernel.errors.RankDied: rank 2 died"))
    shut = FailedRank(1, 1, ("Traceback", "hvd_kernel.errors.HorovodInternalError: Horovod has been shut down."))
    late = FailedRank(4, 1, ("Traceback", "hvd_kernel.errors.RankStalled: rank 2 did not come"))
    own = FailedRank(2, 1, ("Traceback", "ValueError: no"))
    assert root_cause([told, shut, late, own]) is own
    assert root_cause([told, FailedRank(3, -11), own]) == FailedRank(3, -11)
    assert root_cause([told, shut]) is told
    assert root_cause([]) is None
    mismatch = FailedRank(1, 1, ("hvd_kernel.errors.Mismatch: ranks disagree",))
    assert root_cause([told, mismatch]) is mismatch


@pytest.mark.parametrize("error", ["hvd_kernel.errors.RankDied: rank 1 has died", "RuntimeError: RankFailed: bug 7"])
def test_consequence_in_the_words_of_torchs_excepthook(error: str) -> None:
    """hvdrun named the rank that was released as the one that failed."""
    released = FailedRank(0, 1, ("[rank0]: Traceback (most recent call last):", f"[rank0]: {error}"))
    cause = FailedRank(1, 1, ("[rank1]: Traceback (most recent call last):", "[rank1]: ValueError: RankDied: no"))
    assert root_cause([released, cause]) is cause


def test_the_last_line() -> None:
    start, died, end = "hvdrun: rank 1 failed (", "hvdrun: rank 1 died: ", "; all ranks have ended.\n"
    assert sentence(FailedRank(1, 3), [], []) == f"{start}exit status 3){end}"
    assert sentence(FailedRank(1, -9), [0], []) == f"{died}killed (SIGKILL); rank 0 failed alike{end}"
    both = f"{start}exit status 1); rank 0 failed alike; ranks 2-3 failed because of it{end}"
    assert sentence(FailedRank(1, 1), [0], [3, 2]) == both


def test_statuses() -> None:
    assert [shell_status(code) for code in (0, 7, -9, -15)] == [0, 7, 137, 143]


# MPI.

ORDER = mpi.Order(["python", "x"], 2, [Host("a", 1), Host("b", 1)], {"HVD_SECRET_KEY": "hidden", "FOO": "x"})


def pretend(monkeypatch: pytest.MonkeyPatch, folder: Path, version: str) -> str:
    program = folder / "mpiexec"
    program.write_text(f"#!/bin/sh\necho '{version}'\n")
    program.chmod(0o755)
    monkeypatch.setattr(mpi, "find_mpiexec", lambda: str(program))
    return str(program)


def after(words: list[str], flag: str) -> list[str]:
    return [words[at + 1] for at, word in enumerate(words[:-1]) if word == flag]


def test_open_mpi(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    program = pretend(monkeypatch, tmp_path, "mpiexec (Open MPI) 5.0.11")
    order = mpi.Order(ORDER.command, 2, ORDER.hosts, ORDER.env, ("--bind-to", "core"), ssh_port=22, interface="eth0")
    plan = mpi.plan(order)
    words = plan.command
    assert words[:1] + words[-2:] == [program, "python", "x"]
    assert after(words, "-n") == ["2"]
    assert after(words, "--host") == ["a:1,b:1"]
    assert after(words, "-x") == ["HVD_SECRET_KEY"]
    assert after(words, "--bind-to") == ["core"]
    settings = {words[at + 1]: words[at + 2] for at, word in enumerate(words) if word == "--mca"}
    assert (settings["btl"], settings["plm_ssh_args"], settings["btl_tcp_if_include"]) == (
        "self,sm,tcp",
        "-p 22",
        "eth0",
    )
    assert "hidden" not in " ".join(words)
    assert plan.env["HVD_SECRET_KEY"] == "hidden"
    for folder in plan.folders:
        shutil.rmtree(folder)


@pytest.mark.parametrize(
    ("given", "written"),
    [
        ("-bind-to none -map-by slot", "--bind-to none --map-by slot"),
        ("--bind-to none -x A -np 2 -report-bindings", "--bind-to none -x A --np 2 --report-bindings"),
        ("-mca plm_rsh_args -np --mca btl -wdir", "--mca plm_rsh_args -np --mca btl -wdir"),  # values, not flags
        ("-display=map -no-such-option -", "--display=map -no-such-option -"),
    ],
)
def test_open_mpi_5_gets_two_dashes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, given: str, written: str) -> None:
    """It took `-bind-to none` for a program named none, and `-map-by` as an option without effect."""
    pretend(monkeypatch, tmp_path, "mpiexec (Open MPI) 5.0.11")
    plan = mpi.plan(replace(ORDER, args=tuple(given.split())))
    for folder in plan.folders:
        shutil.rmtree(folder)
    words = written.split()
    assert plan.command[-len(words) - 2 : -2] == words


def test_first_existing_interface_is_used(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(main, "addresses", lambda: {"lo": "127.0.0.1", "eth0": "10.0.0.7"})
    told = "hvdrun: warning: ranks use one network interface: eth0, the first of them that is here\n"
    assert [main._interface(names) for names in ((), ("lo",), ("ib0", "eth0", "lo"))] == ["", "lo", "eth0"]
    assert capsys.readouterr().err == told
    with pytest.raises(UsageError, match="--network-interfaces ib0,ib1: this host has lo, eth0"):
        main._interface(("ib0", "ib1"))


def test_network_in_which_ranks_of_open_mpi_connect(tmp_path: Path) -> None:
    env, found = {"HOME": str(tmp_path)}, {"OMPI_MCA_btl_tcp_if_include": "10.0.0.0/24"}
    assert open_mpi.common_network([HERE, HERE, FAR], env, []) == found
    assert open_mpi.common_network([HERE, HERE], env, []) == {}, "one machine"
    assert open_mpi.common_network([HERE, FAR | {"networks": {"eth0": "10.9.0.2/24"}}], env, []) == {}, "none in common"
    assert open_mpi.common_network([HERE, FAR], env | {"OMPI_MCA_btl_tcp_if_exclude": "lo"}, []) == {}
    assert open_mpi.common_network([HERE, FAR], env, ["--mca", "btl_tcp_if_include", "eth0"]) == {}
    (tmp_path / ".openmpi").mkdir()
    (tmp_path / ".openmpi/mca-params.conf").write_text("btl_tcp_if_include = eth0\n")
    assert open_mpi.common_network([HERE, FAR], env, []) == {}


@pytest.mark.parametrize("version", ["HYDRA build details:", "Intel(R) MPI Library for Linux* OS"])
def test_mpich_and_intel(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, version: str) -> None:
    program = pretend(monkeypatch, tmp_path, version)
    expected = [program, "-n", "2", "-hosts", "a:1,b:1", "-genvlist", "HVD_SECRET_KEY", "python", "x"]
    assert mpi.plan(ORDER).command == expected
    with pytest.raises(ConfigError, match="takes no ssh port or identity file"):
        mpi.plan(mpi.Order(ORDER.command, 2, ORDER.hosts, ORDER.env, ssh_port=22))


@pytest.mark.parametrize(
    ("order", "passed"),
    [
        (("b", "7"), "HVD_X"),
        (("b", "7", "CUDA_VISIBLE_DEVICES"), "CUDA_VISIBLE_DEVICES,HVD_X"),
        (("b", ""), "CUDA_VISIBLE_DEVICES,HVD_HOST,HVD_X"),
        (("localhost", "7"), "CUDA_VISIBLE_DEVICES,HVD_HOST,HVD_X"),
    ],
)
def test_mpi_leaves_devices_to_each_node_of_a_batch_job(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, order: tuple[str, ...], passed: str
) -> None:
    host, job, *chosen = order
    pretend(monkeypatch, tmp_path, "HYDRA build details:")
    env = {"SLURM_JOB_ID": job, "CUDA_VISIBLE_DEVICES": "0", "HVD_HOST": "a", "HVD_X": "1"}
    hosts = [Host("localhost", 1), Host(host, 1)]
    assert after(mpi.plan(mpi.Order(["x"], 2, hosts, env, chosen=chosen)).command, "-genvlist") == [passed]


def test_an_unknown_mpi(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pretend(monkeypatch, tmp_path, "Some MPI 1.0")
    with pytest.raises(ClusterError, match="is neither Open MPI nor MPICH nor Intel MPI"):
        mpi.plan(ORDER)


def test_process_that_mpiexec_blames() -> None:
    status = ["The first process to do so was:", "", "   Process name: [prterun-vm-22893@1,3]", "   Exit code:    7"]
    killed = ["prterun noticed that process rank 1 with PID 23000 on node vm exited on", "signal 9 (Killed)."]
    aborted = ["MPI_ABORT was invoked on rank 2 in communicator MPI_COMM_WORLD", "  Proc: [[3,1],2]", "  Errorcode: 9"]
    older = ["MPI_ABORT was invoked on rank 1 in communicator MPI_COMM_WORLD", "with errorcode 4."]
    assert mpi.first_failure(status) == (3, 7)
    assert mpi.first_failure(aborted) == (2, 9)
    assert mpi.first_failure(older) == (1, 4)
    assert mpi.first_failure(killed) == (1, -9)
    assert mpi.first_failure(["nothing of that kind"]) == (None, 0)


# horovodrun.


def test_horovodrun_is_installed_if_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path / "other"))
    path = horovodrun.install(tmp_path)
    assert path == tmp_path / "horovodrun"
    done = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=240, check=True)
    assert done.stdout.count(".") == 2
    assert horovodrun.install(tmp_path) == path  # ours: nothing to do
    path.write_text("#!/bin/sh\n")
    with pytest.raises(ConfigError, match="exists and was not installed by hvdrun"):
        horovodrun.install(tmp_path)


def test_foreign_horovodrun_is_not_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs" / "horovodrun").write_text("#!/bin/sh\n")
    (tmp_path / "theirs" / "horovodrun").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path / "theirs"))
    with pytest.raises(ConfigError, match="is on PATH"):
        horovodrun.install(tmp_path)
    assert not (tmp_path / "horovodrun").exists()


def test_exit_is_reported_with_the_name_of_its_signal() -> None:
    assert [exit_text(code) for code in (3, -11, -signal.SIGRTMIN - 1)] == [
        "exit status 3",
        "segmentation fault (SIGSEGV)",
        f"real-time signal 1 (signal {signal.SIGRTMIN + 1})",
    ]


# What an allocation and the user say about a node.


def test_cores_of_an_allocation_are_known_by_host() -> None:
    env = {
        "SLURM_JOB_ID": "7",
        "SLURM_JOB_NODELIST": "n[1-2]",
        "SLURM_JOB_CPUS_PER_NODE": "8,4",
        "SLURM_TASKS_PER_NODE": "2(x2)",
        "SLURM_NTASKS": "4",
    }
    assert placement.without_flags(env).cores == {"n1": 8, "n2": 4}


def test_variables_of_a_job_win_over_the_nodes() -> None:
    job = Job(["true"], 1, env={"CUDA_VISIBLE_DEVICES": "1", "DATA": "/data"})
    assert chosen_variables(job) == ["CUDA_VISIBLE_DEVICES"]


@pytest.mark.parametrize(
    ("env", "promise", "promised"),
    [
        ({"WORLD_SIZE": "4", "RANK": "0"}, "WORLD_SIZE=4", 4),
        ({"PET_NNODES": "2", "PET_NPROC_PER_NODE": "2"}, "PET_NNODES=2 and PET_NPROC_PER_NODE=2", 4),
        ({"PET_NNODES": "2", "PET_NPROC_PER_NODE": "auto"}, "PET_NNODES=2 and PET_NPROC_PER_NODE=auto", 2),
        ({"OMPI_COMM_WORLD_SIZE": "3"}, "OMPI_COMM_WORLD_SIZE=3", 3),
        ({"PMI_SIZE": "3"}, "PMI_SIZE=3", 3),
    ],
)
def test_fewer_ranks_than_the_environment_names_are_refused(env: dict[str, str], promise: str, promised: int) -> None:
    """A job of two nodes trained on one rank and succeeded."""
    with pytest.raises(UsageError) as raised:
        placement.without_flags(env | {"HVD_GPUS": "none"})
    assert str(raised.value) == placement.fewer_ranks_text(promise, promised, 1)
    assert placement.without_flags(env | {"HVD_GPUS": "none"}, np=1).np == 1, "the user's choice"


@pytest.mark.parametrize(
    "env", [{}, {"WORLD_SIZE": "1"}, {"PET_NNODES": "1:4"}, {"WORLD_SIZE": "4", "RANK": "1", "HOROVOD_RANK": "1"}]
)
def test_a_rank_alone_may_start(env: dict[str, str]) -> None:
    assert placement.without_flags(env | {"HVD_GPUS": "none"}).np == 1
