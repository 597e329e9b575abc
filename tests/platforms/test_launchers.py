"""The ranks find each other however they are started: mpirun, srun, torchrun, Horovod's variables, torch's, the engine of docs/extending.md."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterator
from io import StringIO
from pathlib import Path

import cloudpickle
import pytest
from hvdtest.hvdrun import HVDRUN, NIGHTLY, SUM, good, lines_of, ran
from hvdtest.launch import RankPool, free_port, torch_variables
from hvdtest.recipes import module
from hvdtest.slurm import FAKE_SRUN, Slurm, why_not

from hvd_kernel.launch.job_run import Job
from hvd_kernel.launch.run.call import pack_call
from hvd_kernel.launch.run.execution import in_processes

pytestmark = pytest.mark.mp
if __name__ in sys.modules:  # not in a rank, which has this file under another name
    cloudpickle.register_pickle_by_value(sys.modules[__name__])  # ranks of an engine do not see it

SCRIPT = """
import json, sys
import numpy as np
from hvd_kernel.core import session as here, ops
from hvd_kernel.core.process_sets import init
found = []
for round in range(2):
    init()
    x = ops.allreduce(np.array([here.rank() + 1.0]), name="x", op=ops.Sum).item()
    place = [here.local_rank(), here.local_size(), here.cross_rank(), here.cross_size()]
    found.append([here.rank(), here.size(), *place, x])
    here.shutdown()
with open(sys.argv[1] + str(found[0][0]), "w") as file:
    json.dump(found, file)
"""
MPIRUN = [
    f"{sys.prefix}/bin/mpirun",
    "--allow-run-as-root",
    "--oversubscribe",
    "--bind-to",
    "none",
    "--mca",
    "pml",
    "ob1",
    "--mca",
    "btl",
    "self,sm",
]


def launched(command: list[str], tmp_path: Path, np: int, first: str = "", **env: str) -> None:
    script = tmp_path / "script.py"
    script.write_text(first + SCRIPT)
    good(ran([*command, str(script), str(tmp_path / "rank")], tmp_path, **env))
    for rank in range(np):
        one = [rank, np, rank, np, 0, 1, np * (np + 1) / 2]
        assert json.loads((tmp_path / f"rank{rank}").read_text()) == [one, one]


@pytest.mark.parametrize("np", [pytest.param(1, marks=NIGHTLY), 3])
def test_mpirun(tmp_path: Path, np: int) -> None:
    launched([*MPIRUN, "-np", str(np), sys.executable, "-P"], tmp_path, np)


@pytest.mark.parametrize("finalize", [None, pytest.param(False, marks=NIGHTLY), pytest.param(True, marks=NIGHTLY)])
def test_mpi_is_started_where_mpi4py_does_not(tmp_path: Path, finalize: bool | None) -> None:
    """The job was aborted: "MPI_Comm_rank() was called before MPI_INIT"."""
    first = f"import mpi4py\nmpi4py.rc.initialize = False\nmpi4py.rc.finalize = {finalize}\n"
    launched([*MPIRUN, "-np", "2", sys.executable, "-P"], tmp_path, 2, first)


def test_finalised_mpi_is_reported(tmp_path: Path) -> None:
    script = "from mpi4py import MPI; MPI.Finalize(); from hvd_kernel.core import session; session.init()"
    done = ran([*MPIRUN, "-np", "1", sys.executable, "-P", "-c", script], tmp_path)
    assert "ConfigError: this process has finalised MPI already: call init() before that" in done.stderr


def test_the_line_of_horovods_tutorials(tmp_path: Path) -> None:
    # They write one dash, as Open MPI 4 has it; the mpirun of Open MPI 5 wants two before bind-to and map-by.
    line = "-np 4 -H localhost:4 --bind-to none --map-by slot -x NCCL_DEBUG=INFO -mca pml ob1 -mca btl ^openib"
    as_root = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    launched([f"{sys.prefix}/bin/mpirun", *line.split(), sys.executable], tmp_path, 4, **as_root)


@NIGHTLY
def test_mpirun_without_mpi(tmp_path: Path) -> None:
    meeting = {"HOROVOD_CONTROLLER_ADDR": "127.0.0.1", "HOROVOD_CONTROLLER_PORT": str(free_port())}
    blind = "import sys; sys.modules['mpi4py'] = None; import runpy; sys.argv.pop(0); runpy.run_path(sys.argv[0])"
    command = [*MPIRUN, "-np", "2", sys.executable, "-P", "-c", blind]
    launched(command, tmp_path, 2, HVD_BOOTSTRAP="tcp", **meeting)


@pytest.mark.parametrize("np", [pytest.param(1, marks=NIGHTLY), 3])
def test_srun(tmp_path: Path, np: int) -> None:
    srun = tmp_path / "srun"
    srun.write_text(FAKE_SRUN)
    launched([sys.executable, str(srun), f"-n{np}", sys.executable, "-P"], tmp_path, np)


HOROVODRUN = """
# horovodrun of a machine without Horovod: its HTTP store, and the variables that it gives to ranks on this host.
import os, subprocess, sys, threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

class Store(BaseHTTPRequestHandler):
    values = {}
    def answer(self, status, value=b""):
        self.send_response(status)
        self.send_header("Content-Length", str(len(value)))
        self.end_headers()
        self.wfile.write(value)
    def do_PUT(self):
        self.values[self.path] = self.rfile.read(int(self.headers["Content-Length"]))
        self.answer(200)
    def do_GET(self):
        _, scope, key = self.path.split("/")
        value = self.values.get(self.path)
        self.answer(404) if value is None else self.answer(200, value)
    def log_message(self, *args):
        pass

count = int(sys.argv[2])
server = ThreadingHTTPServer(("127.0.0.1", 0), Store)
threading.Thread(target=server.serve_forever, daemon=True).start()
address, port = server.server_address
shared = {"HOROVOD_GLOO_RENDEZVOUS_ADDR": address, "HOROVOD_GLOO_RENDEZVOUS_PORT": str(port),
          "HOROVOD_CONTROLLER": "gloo", "HOROVOD_CPU_OPERATIONS": "gloo", "HOROVOD_GLOO_IFACE": "lo",
          "HOROVOD_SIZE": str(count), "HOROVOD_LOCAL_SIZE": str(count), "HOROVOD_CROSS_RANK": "0",
          "HOROVOD_CROSS_SIZE": "1", "HOROVOD_HOSTNAME": "localhost"}
ranks = [subprocess.Popen(sys.argv[3:], env={**os.environ, **shared, "HOROVOD_RANK": str(i), "HOROVOD_LOCAL_RANK": str(i)})
         for i in range(count)]
sys.exit(max(rank.wait() for rank in ranks))
"""


@pytest.mark.parametrize("np", [pytest.param(1, marks=NIGHTLY), 2, pytest.param(3, marks=NIGHTLY)])
def test_horovodrun_of_horovod(tmp_path: Path, np: int) -> None:
    """Its ranks read the address of rank 0 from its HTTP store at each rendezvous; a web proxy is not used."""
    horovodrun = tmp_path / "horovodrun"
    horovodrun.write_text(HOROVODRUN)
    command = [sys.executable, str(horovodrun), "-np", str(np), sys.executable, "-P"]
    launched(command, tmp_path, np, http_proxy="http://127.0.0.1:9")


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Slurm]:
    with Slurm(tmp_path_factory.mktemp("slurm")) as running:
        yield running


@NIGHTLY
@pytest.mark.skipif(bool(why_not()), reason=why_not() or "none")
@pytest.mark.parametrize(("np", "nodes"), [(1, 1), (3, 1), (4, 2)])
def test_srun_of_slurm(slurm: Slurm, tmp_path: Path, np: int, nodes: int) -> None:
    """Ranks on several nodes know each other by the secret that the batch script has made."""
    secret = {"HVD_SECRET_KEY": "0123456789abcdef0123456789abcdef"} if nodes > 1 else {}
    command = ["srun", f"-N{nodes}", f"-n{np}", sys.executable, "-P"]
    launched(command, tmp_path, np, **slurm.variables, **secret)


@NIGHTLY
@pytest.mark.skipif(bool(why_not()), reason=why_not() or "none")
def test_hvdrun_starts_agents_by_srun_in_a_slurm_allocation(slurm: Slurm) -> None:
    script = f"import os; print(os.environ['SLURMD_NODENAME'])\n{SUM}"
    command = ["salloc", "--quiet", "-N2", "-n3", *HVDRUN, sys.executable, "-P", "-c", script]
    done = ran(command, **slurm.variables)
    assert [lines_of(good(done), rank) for rank in range(3)] == [
        [node, f"{rank} 3 {rank} 3 1 6.0"] for rank, node in enumerate(("n1", "n1", "n2"))
    ], "both nodes are this host"
    assert "gives 2 hosts with 3 slots (n1: 2, n2: 1)" in done.stderr


@NIGHTLY
@pytest.mark.skipif(bool(why_not()), reason=why_not() or "none")
def test_agents_start_in_every_component_of_a_slurm_job(slurm: Slurm) -> None:
    script = f"import os; print(os.environ['SLURMD_NODENAME'])\n{SUM}"
    components = ["-wn1", "-n1", ":", "-wn2", "-n2"]
    command = ["salloc", "--quiet", *components, *HVDRUN, sys.executable, "-P", "-c", script]
    done = ran(command, seconds=300, **slurm.variables)  # Slurm starts such a job within half a minute
    assert [lines_of(good(done), rank) for rank in range(3)] == [
        [node, f"{rank} 3 {rank} 3 1 6.0"] for rank, node in enumerate(("n1", "n2", "n2"))
    ], "both nodes are this host"


FAKE_JSRUN = """#!/bin/sh
# A fake: resource sets are groups of processes of this host, which learn their numbers as jsrun's do.
echo "$@" > "$0.said"
test "$1 $3 $4 $5 $7 $9 ${11}" = "--nrs --rs_per_host 1 --tasks_per_rs --cpu_per_rs --gpu_per_rs --bind" || exit 9
size=$(($2 * $6)) beside=$6
shift 12
rank=0
while test $rank -lt $size; do
    JSM_NAMESPACE_RANK=$rank JSM_NAMESPACE_SIZE=$size JSM_NAMESPACE_LOCAL_SIZE=$beside "$@" &
    rank=$((rank + 1))
done
wait
"""


def fake_jsrun(folder: Path) -> dict[str, str]:
    (folder / "jsrun").write_text(FAKE_JSRUN)
    (folder / "jsrun").chmod(0o755)
    return {"PATH": f"{folder}:{os.environ['PATH']}", "LSB_JOBID": "7"}


def test_hvdrun_starts_ranks_by_jsrun_in_an_lsf_allocation(tmp_path: Path) -> None:
    lsf = fake_jsrun(tmp_path) | {"LSB_MCPU_HOSTS": "127.0.0.1 2 127.0.0.2 2"}
    done = ran([*HVDRUN, sys.executable, "-P", "-c", SUM], **lsf)
    assert [lines_of(good(done), rank) for rank in range(4)] == [[f"{rank} 4 {rank} 4 1 10.0"] for rank in range(4)]
    assert "hvdrun: LSF job 7 gives 2 hosts (127.0.0.1, 127.0.0.2) with 2 slots each" in done.stderr
    said = (tmp_path / "jsrun.said").read_text()
    assert said.startswith(
        "--nrs 2 --rs_per_host 1 --tasks_per_rs 2 --cpu_per_rs ALL_CPUS --gpu_per_rs ALL_GPUS --bind none "
    )


@NIGHTLY
def test_status_of_a_rank_under_jsrun_is_the_jobs(tmp_path: Path) -> None:
    lsf = fake_jsrun(tmp_path) | {"LSB_MCPU_HOSTS": "127.0.0.1 2"}
    done = ran([*HVDRUN, "sh", "-c", "test $HOROVOD_RANK = 0 && exec sleep 100; exit 3"], **lsf)
    assert done.returncode == 3
    nowhere = ran([*HVDRUN, "--jsrun", "-np", "1", "true"], PATH=lsf["PATH"])
    assert (nowhere.returncode, nowhere.stderr.splitlines()[-1]) == (
        2,
        "hvdrun: --jsrun is for the hosts of an LSF job, where jsrun is on PATH: leave out one of them",
    )
    uneven = ran([*HVDRUN, "--jsrun", "-np", "3", "true"], **lsf | {"LSB_MCPU_HOSTS": "127.0.0.1 2 127.0.0.2 2"})
    assert uneven.returncode == 2
    assert (
        "jsrun starts as many ranks on each host, and 3 over 2 hosts are not: let -np be a multiple of 2"
        in uneven.stderr
    )


def test_torchrun(tmp_path: Path) -> None:
    torchrun = [sys.executable, "-P", "-m", "torch.distributed.run", "--nproc-per-node", "3"]
    launched([*torchrun, "--master-port", str(free_port())], tmp_path, 3)


@NIGHTLY
def test_torchrun_wins_over_the_mpi_that_started_it(tmp_path: Path) -> None:
    torchrun = [sys.executable, "-P", "-m", "torch.distributed.run", "--nproc-per-node", "2"]
    outer = {"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "1"}
    launched([*torchrun, "--master-port", str(free_port())], tmp_path, 2, **outer)


def test_no_launcher_is_one_rank(tmp_path: Path) -> None:
    launched([sys.executable, "-P"], tmp_path, 1)


def who() -> list[int]:
    from hvd_kernel.core import session
    from hvd_kernel.core.process_sets import init

    init()
    return [session.rank(), session.size(), session.local_rank(), session.local_size()]


def test_torch_variables() -> None:
    with RankPool(2, variables=torch_variables) as pool:
        assert pool.run(who) == [[0, 2, 0, 2], [1, 2, 1, 2]]


@NIGHTLY
def test_both_kinds_of_variables() -> None:
    def both(rank: int, size: int, port: int) -> dict[str, str]:
        horovod = {"HOROVOD_RANK": str(rank), "HOROVOD_SIZE": str(size), "HOROVOD_LOCAL_RANK": str(rank)}
        return torch_variables(1 - rank, size, port) | horovod  # they contradict: Horovod's win

    with RankPool(2, variables=both) as pool:
        assert pool.run(who) == [[0, 2, 0, 2], [1, 2, 1, 2]]


def absent() -> str:
    from hvd_kernel.core import session
    from hvd_kernel.core.process_sets import init
    from hvd_kernel.errors import HorovodInternalError

    with pytest.raises(HorovodInternalError) as caught:
        init()
    assert not session.is_initialized()
    return str(caught.value)


def test_rank_that_never_connects() -> None:
    def three(rank: int, _size: int, port: int) -> dict[str, str]:
        return {**torch_variables(rank, 3, port), "HVD_START_TIMEOUT": "2"}

    with RankPool(2, variables=three) as pool:
        for text in pool.run(absent, timeout=45):
            assert re.match(r"rank (\d, )?2 did not come to rank 0 at |rank 0 did not answer at ", text), text


MPI_SCRIPT = """
from mpi4py import MPI
import numpy as np
from hvd_kernel.core import session as here, ops
from hvd_kernel.core.process_sets import init
world = MPI.COMM_WORLD
half = world.Split(world.rank % 2, -world.rank)
init(half)
assert (here.rank(), here.size()) == (half.rank, half.size)
assert ops.allreduce(np.array([world.rank]), "x", ops.Sum).item() == (2 if world.rank % 2 == 0 else 1)
here.shutdown()
if world.rank != 1:
    init([0, 2])
    assert (here.rank(), here.size()) == (world.rank // 2, 2)
    assert ops.allgather(np.array([world.rank]), "g").tolist() == [0, 2]
    here.shutdown()
world.Barrier()
"""


def test_communicators(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(MPI_SCRIPT)
    good(ran([*MPIRUN, "-np", "3", sys.executable, "-P", str(script)], tmp_path))


def some(members: list[int]) -> list[object]:
    import numpy as np

    from hvd_kernel.core import ops, session

    if int(os.environ["HOROVOD_RANK"]) not in members:
        return []
    found: list[object] = []
    for _ in range(2):
        session.init(members)
        mine = np.array([int(os.environ["HOROVOD_RANK"])])
        found.append([session.rank(), session.size(), ops.allgather(mine, "g").tolist()])
        session.shutdown()
    return found


@pytest.mark.parametrize(
    "members",
    [
        pytest.param([0, 2], marks=NIGHTLY),
        [2, 0],
        pytest.param([0, 1, 2], marks=NIGHTLY),
        pytest.param([0], marks=NIGHTLY),
    ],
)
def test_some_ranks_without_mpi(members: list[int]) -> None:
    with RankPool(3) as pool:
        found = pool.run(some, members)
    for rank in range(3):
        one = [members.index(rank), len(members), members] if rank in members else None
        assert found[rank] == ([one, one] if one else [])


def a_communicator() -> str:
    # Of a process that it has not started Open MPI leaves the shared memory behind.
    os.environ["OMPI_MCA_btl"] = "self"  # noqa: SIM112 - its spelling
    from mpi4py import MPI

    from hvd_kernel.core import session
    from hvd_kernel.errors import ConfigError

    with pytest.raises(ConfigError) as caught:
        session.init(MPI.COMM_WORLD)
    session.init()
    assert session.size() == 2
    return str(caught.value)


@NIGHTLY
def test_communicator_of_an_mpi_that_did_not_start_the_ranks() -> None:
    with RankPool(2) as pool:
        for text in pool.run(a_communicator):
            assert "HOROVOD_SIZE=2: MPI did not start these ranks" in text


def gathered() -> list[int]:
    from hvd_kernel.core import session
    from hvd_kernel.torch import allgather_object

    session.init()
    return allgather_object(session.rank())


def test_ranks_of_the_documented_engine_form_a_communicator() -> None:
    job = Job(command=[""], np=2, engine=module("engine").Multiprocessing(2), start_timeout_s=60)
    assert in_processes(pack_call(gathered, (), {}, ()), job, stdout=StringIO(), stderr=StringIO()) == [[0, 1]] * 2
