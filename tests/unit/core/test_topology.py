"""Who this process is, from nothing but its environment; and that importing costs nothing."""

from __future__ import annotations

import itertools
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace

import pytest

from hvd_kernel.core import topology
from hvd_kernel.errors import ConfigError, HvdTimeout

MEETING = {"HOROVOD_CONTROLLER_ADDR": "127.0.0.1", "HOROVOD_CONTROLLER_PORT": "4321"}
MASTER = {"MASTER_ADDR": "10.1.2.3", "MASTER_PORT": "29500"}
TORCH = {"RANK": "1", "WORLD_SIZE": "2", **MASTER}
HOROVOD = {"HOROVOD_RANK": "2", "HOROVOD_SIZE": "3"}
STEP = {
    "SLURM_JOB_ID": "4096",
    "SLURM_PROCID": "1",
    "SLURM_STEP_ID": "0",
    "SLURM_STEP_NUM_TASKS": "4",
    "SLURM_STEP_NODELIST": "node[03-04]",
    "SLURM_STEP_NUM_NODES": "2",
}
HERE = STEP | {"SLURM_STEP_NUM_NODES": "1"}
PMI_OF_STEP = {"PMI_RANK": "1", "PMI_SIZE": "4"}
MPI = {"OMPI_COMM_WORLD_RANK": "3", "OMPI_COMM_WORLD_SIZE": "4"}


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """Record the connections instead of making them."""
    calls: list[object] = []

    def over_tcp(rank: int, size: int, address: object, source: str, _env: object) -> topology.Peers:
        calls.append((rank, size, address))
        return topology.Peers(rank, size, source, lambda mine: [mine] * size)

    def over_mpi(_env: object, _only: object) -> topology.Peers:
        return topology.Peers(3, 4, "MPI", lambda mine: [mine] * 4)

    def store(rank: int, size: int, address: object, meeting: str, _env: object) -> topology.Exchange:
        calls.append((rank, size, address, meeting))
        return lambda mine: [mine] * size

    monkeypatch.setattr(topology, "_over_tcp", over_tcp)
    monkeypatch.setattr(topology, "_from_world", over_mpi)
    monkeypatch.setattr(topology, "_store_exchange", store)
    return calls


def who(env: dict[str, str], round_number: int = 1) -> tuple[int, int, str]:
    peers = topology.find(env=env, round_number=round_number)
    return peers.rank, peers.size, peers.source


def test_nothing_is_size_1(asked: list[object]) -> None:
    peers = topology.find(env={})
    assert (peers.rank, peers.size) == (0, 1)
    assert peers.exchange(b"x") == [b"x"]
    assert not asked


@pytest.mark.parametrize(
    ("env", "found", "address"),
    [
        (HOROVOD | MEETING, (2, 3, "HOROVOD_RANK"), ("127.0.0.1", 4321)),
        (HOROVOD | MASTER, (2, 3, "HOROVOD_RANK"), ("10.1.2.3", 29500)),
        (HOROVOD | MEETING | TORCH | MPI, (2, 3, "HOROVOD_RANK"), ("127.0.0.1", 4321)),
        (TORCH, (1, 2, "RANK"), ("10.1.2.3", 29500)),
        (TORCH | MPI, (3, 4, "MPI"), None),
        (TORCH | MPI | {"HVD_BOOTSTRAP": "tcp"}, (1, 2, "RANK"), ("10.1.2.3", 29500)),
        (TORCH | MPI | {"TORCHELASTIC_RUN_ID": "7"}, (1, 2, "RANK"), ("10.1.2.3", 29500)),
        (MPI, (3, 4, "MPI"), None),
        ({"PMI_RANK": "3", "PMI_SIZE": "4"}, (3, 4, "MPI"), None),
        (HOROVOD | MEETING | {"HVD_BOOTSTRAP": "mpi"}, (3, 4, "MPI"), None),
        (HOROVOD | MEETING | {"HVD_BOOTSTRAP": "none"}, (0, 1, "no launcher"), None),
        ({"HOROVOD_RANK": "0", "HOROVOD_SIZE": "1"}, (0, 1, "HOROVOD_SIZE"), None),
        ({"RANK": "0", "WORLD_SIZE": "1"}, (0, 1, "WORLD_SIZE"), None),
        ({"RANK": "1"}, (0, 1, "no launcher"), None),
        (STEP, (1, 4, "SLURM_PROCID"), ("node03", 61440)),
        (HERE, (1, 4, "SLURM_PROCID"), ("127.0.0.1", 61440)),
        (HERE | {"SLURM_STEP_ID": "2"}, (1, 4, "SLURM_PROCID"), ("127.0.0.1", 61562)),
        (STEP | MASTER, (1, 4, "SLURM_PROCID"), ("10.1.2.3", 29500)),
        (STEP | MEETING, (1, 4, "SLURM_PROCID"), ("127.0.0.1", 4321)),
        (STEP | TORCH, (1, 2, "RANK"), ("10.1.2.3", 29500)),
        (STEP | MPI, (3, 4, "MPI"), None),
        (HERE | PMI_OF_STEP, (1, 4, "SLURM_PROCID"), ("127.0.0.1", 61440)),
        (HERE | {"PMI_RANK": "3", "PMI_SIZE": "8"}, (3, 4, "MPI"), None),
        (HERE | {"SLURM_STEP_NUM_TASKS": "1", "SLURM_PROCID": "0"}, (0, 1, "SLURM_STEP_NUM_TASKS"), None),
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "4"}, (0, 1, "no launcher"), None),  # a batch script, not a task
        (MPI | MEETING | {"HVD_BOOTSTRAP": "tcp"}, (3, 4, "OMPI_COMM_WORLD_RANK"), ("127.0.0.1", 4321)),
    ],
)
def test_precedence_of_launchers(
    asked: list[object], env: dict[str, str], found: tuple[int, int, str], address: object
) -> None:
    assert who(env) == found
    assert asked == ([] if address is None else [(*found[:2], address)])


def test_torchruns_store_has_keys_for_each_round(asked: list[object]) -> None:
    env = TORCH | {
        "TORCHELASTIC_RUN_ID": "7",
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "TORCHELASTIC_RESTART_COUNT": "2",
    }
    assert who(env) == (1, 2, "torchrun")
    assert who(env, round_number=2) == (1, 2, "torchrun")
    assert [call[3] for call in asked] == ["hvd_kernel/2/1", "hvd_kernel/2/2"]  # type: ignore[index]


@pytest.mark.parametrize(
    ("env", "text"),
    [
        ({"HVD_BOOTSTRAP": "pigeon"}, "HVD_BOOTSTRAP='pigeon' cannot be used: it must be mpi, tcp or none."),
        ({"HVD_BOOTSTRAP": "tcp"}, "HVD_BOOTSTRAP=tcp needs HOROVOD_RANK"),
        (HOROVOD, "set HOROVOD_CONTROLLER_ADDR and HOROVOD_CONTROLLER_PORT"),
        ({"HOROVOD_RANK": "0"} | MEETING, "HOROVOD_SIZE, which is not set, must be a whole number from 1"),
        ({"HOROVOD_RANK": "3", "HOROVOD_SIZE": "3"} | MEETING, "HOROVOD_RANK=3 must be below HOROVOD_SIZE=3"),
        ({"HOROVOD_RANK": "-1", "HOROVOD_SIZE": "3"} | MEETING, "HOROVOD_RANK='-1' must be a whole number from 0"),
        (HOROVOD | {"HOROVOD_CONTROLLER_PORT": "1"}, "HOROVOD_CONTROLLER_ADDR is not set"),
        (TORCH | {"MASTER_PORT": "70000"}, "MASTER_PORT='70000' must be a whole number from 1 to 65535"),
        ({"RANK": "0", "WORLD_SIZE": "2"}, "MASTER_ADDR is not set"),
        (MPI | {"HVD_BOOTSTRAP": "tcp"}, topology.NO_ADDRESS.format(size_name="OMPI_COMM_WORLD_SIZE", size=4)),
    ],
)
def test_unusable_values_are_named(asked: list[object], env: dict[str, str], text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        topology.find(env=env)
    assert text in str(caught.value)
    assert not asked


@pytest.fixture
def stored() -> Iterator[tuple[dict[str, str], dict[str, bytes]]]:
    """Return the variables of a launcher of Horovod, and the contents of its HTTP store."""
    kept: dict[str, bytes] = {}

    class Store(BaseHTTPRequestHandler):
        def do_PUT(self) -> None:
            kept[self.path] = self.rfile.read(int(self.headers["Content-Length"]))
            self.answer(200, b"")

        def do_GET(self) -> None:
            self.answer(200 if self.path in kept else 404, kept.get(self.path, b""))

        def answer(self, status: int, value: bytes) -> None:
            self.send_response(status)
            self.end_headers()
            self.wfile.write(value)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Store) as server:
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        place = {"HOROVOD_GLOO_RENDEZVOUS_ADDR": "127.0.0.1", "HOROVOD_GLOO_RENDEZVOUS_PORT": str(server.server_port)}
        yield HOROVOD | place, kept
        server.shutdown()


def test_horovods_store_gives_the_address_of_rank_0(
    asked: list[object], stored: tuple[dict[str, str], dict[str, bytes]]
) -> None:
    env, kept = stored
    assert who(env | {"HOROVOD_RANK": "0"} | MASTER, round_number=2) == (0, 3, "HOROVOD_RANK")
    host, port = kept["/hvd_kernel/2"].decode().split(" ")
    assert who(env | MASTER, round_number=2) == (2, 3, "HOROVOD_RANK")
    assert asked == [(0, 3, (host, int(port))), (2, 3, (host, int(port)))]
    assert host == "127.0.0.1", "the address on the way to the store"
    kept["/hvd_kernel/1-0-2"] = b"10.1.2.3 77"
    assert topology.find(comm=[0, 2], env=env).rank == 1, "some ranks meet under a key of their own"
    assert asked[2] == (1, 2, ("10.1.2.3", 77))
    assert who(env | MEETING) == (2, 3, "HOROVOD_RANK")
    assert asked[3] == (2, 3, ("127.0.0.1", 4321)), "our own launcher's word wins"


@pytest.mark.parametrize("size", ["1", "3"])
def test_rank_of_horovods_elastic_launcher_names_hvdrun(
    asked: list[object], stored: tuple[dict[str, str], dict[str, bytes]], size: str
) -> None:
    """That launcher changes the set of ranks, so ranks that connected once would wait for missing ones."""
    env, kept = stored
    elastic = env | {"HOROVOD_ELASTIC": "1", "HOROVOD_RANK": "0", "HOROVOD_SIZE": size}
    with pytest.raises(
        ConfigError,
        match=r"^Horovod's elastic launcher started this rank \(HOROVOD_ELASTIC=1, and its store at "
        r"127\.0\.0\.1:\d+\): .* Start the ranks with `hvdrun -np N python \.\.\.`",
    ):
        who(elastic)
    assert not asked
    assert not kept
    assert who(elastic | {"HOROVOD_ELASTIC": "0", "HOROVOD_SIZE": "3"}) == (0, 3, "HOROVOD_RANK")
    assert who(elastic | {"HOROVOD_SIZE": "3"} | MEETING) == (0, 3, "HOROVOD_RANK"), "our own launcher's word wins"


def test_a_store_without_rank_0s_address_is_named(
    asked: list[object], stored: tuple[dict[str, str], dict[str, bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    env, kept = stored
    with monkeypatch.context() as virtual:
        clock = SimpleNamespace(monotonic=itertools.count(0, 20).__next__, sleep=lambda _: None)
        virtual.setattr(topology, "time", clock)
        with pytest.raises(
            HvdTimeout,
            match=r"the store at 127.0.0.1:\d+ .* within 60 s; its last answer was 404 Not Found. Check whether",
        ):
            who(env | {"HOROVOD_GLOO_TIMEOUT_SECONDS": "60"})
        assert clock.monotonic() == 100, "asked four times: at 20, 40, 60 and 80 s"
    kept["/hvd_kernel/1"] = b"elsewhere"
    with pytest.raises(ConfigError, match="has 'elsewhere' where rank 0's address is wanted"):
        who(env)
    with pytest.raises(ConfigError, match=r"init\(comm=\[1, 2\]\) must name rank 0"):
        topology.find(comm=[1, 2], env=env)
    with pytest.raises(ConfigError, match="HOROVOD_GLOO_RENDEZVOUS_PORT, which is not set, must be a whole number"):
        who({name: value for name, value in env.items() if not name.endswith("_PORT")})
    gone = env | {"HOROVOD_RANK": "0", "HOROVOD_GLOO_RENDEZVOUS_PORT": "1"}
    with pytest.raises(ConfigError, match=r"cannot be reached: .* Is the launcher of these ranks alive"):
        who(gone)
    assert not asked


@pytest.mark.parametrize(
    ("names", "first"),
    [
        ("a", "a"),
        ("a,b", "a"),
        ("a[01-03,7],b2", "a01"),
        ("rack[2-3]node[4,6-9]", "rack2node4"),
        ("a[7]-x,b", "a7-x"),
        ("gpu-1-2", "gpu-1-2"),
    ],
)
def test_slurms_first_node(names: str, first: str) -> None:
    assert topology.first_node(names) == first


def test_subset_without_mpi_meets_in_the_callers_order(monkeypatch: pytest.MonkeyPatch) -> None:
    def over_tcp(rank: int, size: int, address: object, source: str, _env: object) -> topology.Peers:
        assert (rank, size, address, source) == (1, 2, ("127.0.0.1", 4321), "HOROVOD_RANK")
        return topology.Peers(rank, size, source, lambda mine: [b"rank 0", mine])

    monkeypatch.setattr(topology, "_over_tcp", over_tcp)
    peers = topology.find(comm=[2, 0], env=HOROVOD | MEETING)
    assert (peers.rank, peers.size) == (0, 2), "the list's order gives the numbers"
    assert peers.exchange(b"rank 2") == [b"rank 2", b"rank 0"]


def test_some_ranks_under_torchrun_have_keys_of_their_own(asked: list[object]) -> None:
    env = TORCH | {"TORCHELASTIC_RUN_ID": "7", "TORCHELASTIC_USE_AGENT_STORE": "True"}
    peers = topology.find(comm=[1], env=env)
    assert (peers.rank, peers.size) == (0, 1)
    assert asked[0][3] == "hvd_kernel/0/1/[1]"  # type: ignore[index]


@pytest.mark.parametrize(
    ("ranks", "text"),
    [
        ([0, 1], "init(comm=[0, 1]) was called by rank 2, which it does not name."),
        ([2, 2], "init(comm=[2, 2]) must name different ranks between 0 and 2."),
        ([0, 2, 3], "init(comm=[0, 2, 3]) must name different ranks between 0 and 2."),
        ([1, 2], topology.NO_RANK_0.format(only=[1, 2])),
    ],
)
def test_a_wrong_list_of_ranks(asked: list[object], ranks: list[int], text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        topology.find(comm=ranks, env=HOROVOD | MEETING)
    assert text in str(caught.value)
    assert not asked


def test_an_empty_list_means_all(asked: list[object]) -> None:
    assert topology.find(comm=[], env=HOROVOD | MEETING).size == 3
    assert asked


def test_a_communicator_of_an_mpi_that_did_not_start_the_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    class World:
        def Get_size(self) -> int:  # noqa: N802 - mpi4py's name
            return 1

        Get_rank = Allgather = Get_size

    monkeypatch.setattr(topology, "_mpi", lambda: type("MPI", (), {"COMM_WORLD": World()}))
    with pytest.raises(
        ConfigError, match="an MPI that knows 1 rank, but HOROVOD_SIZE=3: MPI did not start these ranks"
    ):
        topology.find(comm=World(), env=HOROVOD | MEETING)


def test_comm_of_another_type() -> None:
    with pytest.raises(ConfigError, match="takes an mpi4py communicator or a list of ranks, not str"):
        topology.find(comm="world")


@pytest.mark.parametrize(
    "module", ["hvd_kernel", "hvd_kernel.settings.lookup", "hvd_kernel.errors", "hvd_kernel.protocol.messages"]
)
def test_base_modules_import_nothing_heavy(module: str) -> None:
    code = f"import sys, {module}; print([m for m in ('torch', 'numpy', 'mpi4py', 'hvd_kernel._native') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, timeout=240, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("env", "launched"),
    [
        ({}, False),
        ({"RANK": "0", "WORLD_SIZE": "2"}, False),
        ({"HOROVOD_RANK": "0", "HOROVOD_SIZE": "2"}, True),
        ({"OMPI_COMM_WORLD_RANK": "1"}, True),
        ({"PMI_RANK": "1"}, True),
    ],
)
def test_launched_by_hvdrun_or_mpi(env: dict[str, str], launched: bool) -> None:
    assert topology.is_launched(env) is launched
