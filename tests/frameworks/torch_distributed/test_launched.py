"""Programs in the style of torchrun, under each launcher: no set-up of ours, and torch's own backends as written."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from hvdtest.hvdrun import good, hvdrun, lines_of, ran
from hvdtest.launch import free_port
from hvdtest.scripts import MPIRUN
from hvdtest.slurm import FAKE_SRUN

pytestmark = [pytest.mark.mp, pytest.mark.timeout(300)]

NAMES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
HEAD = f"""
import json, os, sys
import torch, torch.distributed as dist
from torch.distributed import Backend
torch.set_num_threads(1)
NAMES = {NAMES}
def show(*values):
    sys.stdout.write(json.dumps(values) + "\\n")
def summed(group=None):
    tensor = torch.tensor([dist.get_rank() + 1.0])
    dist.all_reduce(tensor, group=group)
    return tensor.item()
"""
PLAIN = """
kinds, sums = [], []
for backend in ([], ["gloo"], ["hvd"], []):
    dist.init_process_group(*backend)
    kinds.append(type(dist.group.WORLD).__name__)
    sums.append([summed(), summed(dist.new_group([1, 0])), dist.get_rank()])
    dist.destroy_process_group()
show([os.environ[name] for name in NAMES[:-1]], dist.is_torchelastic_launched(), kinds, sums)
"""
DDP = """
rank, local = int(os.environ["RANK"]), int(os.environ["LOCAL_RANK"])
dist.init_process_group(backend="nccl" if torch.cuda.is_available() else "gloo")
torch.manual_seed(rank)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(3, 1, bias=False).double())
x = (torch.arange(24.0).reshape(8, 3).double() * (rank + 1)) % 5 - 2
optimizer = torch.optim.SGD(model.parameters(), lr=0.125)
for _ in range(3):
    optimizer.zero_grad()
    model(x).pow(2).mean().backward()
    optimizer.step()
show(model.module.weight.tolist(), dist.get_backend(), "hvd_kernel.core.session" in sys.modules)
"""
INIT = "import hvd_kernel.torch as hvd\nhvd.init()\n"
AGAIN = "hvd.shutdown()\nhvd.init()\n"  # with the variables of the first one
OFF = """
show([name for name in NAMES if name in os.environ], Backend.backend_list.count("hvd"),
     Backend.default_device_backend_map["cpu"])
"""
RUN = f"""
import json, os, sys
import hvd_kernel
def train(scale):
    import torch, torch.distributed as dist
    dist.init_process_group()
    tensor = torch.tensor([(dist.get_rank() + 1.0) * scale])
    dist.all_reduce(tensor)
    return [tensor.item(), type(dist.group.WORLD).__name__]
answers = hvd_kernel.run(train, (10,), np=2)
sys.stdout.write(json.dumps([answers, [name for name in {NAMES} if name in os.environ]]))
"""
ELASTIC = """
import hvd_kernel.torch as hvd
hvd.init()
@hvd.elastic.run
def train(state):
    dist.init_process_group()
    value = [type(dist.group.WORLD).__name__, summed(), os.environ["WORLD_SIZE"], os.environ["MASTER_ADDR"]]
    dist.destroy_process_group()
    return value
show(train(hvd.elastic.ObjectState()))
"""


def shown(script: str, *words: str, **env: str) -> list[Any]:
    """Return what two ranks have shown, by rank."""
    printed = good(hvdrun("-np", "2", *words, script=HEAD + script, **env))
    return [json.loads("".join(lines_of(printed, rank))) for rank in range(2)]


def test_init_process_group_without_arguments() -> None:
    stale = {"RANK": "7", "WORLD_SIZE": "9", "MASTER_PORT": "1", "TORCHELASTIC_RUN_ID": "a", "LOCAL_RANK": "5"}
    kinds = ["HvdProcessGroup", "ProcessGroup", "HvdProcessGroup", "HvdProcessGroup"]
    assert shown(PLAIN, **stale) == [
        [[f"{rank}", "2", f"{rank}", "2", "127.0.0.1"], False, kinds, [[3.0, 3.0, rank]] * 4] for rank in range(2)
    ]


def test_script_with_gloo_runs_as_written() -> None:
    first, second = shown(DDP)
    assert first == second
    assert first[1:] == ["gloo", False]


def test_setting_turns_it_off() -> None:
    assert shown(OFF, HVD_TORCH="off") == [[[], 0, "gloo"]] * 2


def test_ranks_of_run() -> None:
    done = good(ran([sys.executable, "-P", "-c", RUN]))
    assert json.loads(done) == [[[30.0, "HvdProcessGroup"]] * 2, []]


def test_elastic_job() -> None:
    assert shown(ELASTIC, "--min-np", "2") == [[["HvdProcessGroup", 3.0, "2", "127.0.0.1"]]] * 2


@pytest.mark.nightly
def test_ranks_of_mpi() -> None:
    kinds = ["HvdProcessGroup", "ProcessGroup", "HvdProcessGroup", "HvdProcessGroup"]
    for rank, row in enumerate(shown(PLAIN, "--mpi")):
        assert row == [[f"{rank}", "2", f"{rank}", "2", "127.0.0.1"], False, kinds, [[3.0, 3.0, rank]] * 4]


def test_ranks_of_mpirun(tmp_path: Path) -> None:
    check_plain([*MPIRUN, "-np", "2"], tmp_path)


@pytest.mark.nightly
def test_ranks_of_srun(tmp_path: Path) -> None:
    (srun := tmp_path / "srun").write_text(FAKE_SRUN)
    check_plain([sys.executable, str(srun), "-n2"], tmp_path)


def check_plain(launcher: list[str], tmp_path: Path) -> None:
    """Check PLAIN on two ranks of a launcher that is not ours, after ``hvd.init()`` and after another one."""
    script = tmp_path / "train.py"
    script.write_text(HEAD + INIT + PLAIN + AGAIN + PLAIN)
    printed = good(ran([*launcher, sys.executable, "-P", str(script)], tmp_path))
    kinds = ["HvdProcessGroup", "ProcessGroup", "HvdProcessGroup", "HvdProcessGroup"]
    rows = [[[f"{rank}", "2", f"{rank}", "2", "127.0.0.1"], False, kinds, [[3.0, 3.0, rank]] * 4] for rank in range(2)]
    assert sorted(map(json.loads, printed.splitlines())) == sorted(rows * 2)


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("given", "shown"),
    [
        ({"MASTER_ADDR": "localhost", "MASTER_PORT": ""}, ["HvdProcessGroup", "localhost", True]),
        ({"HVD_TORCH": "off"}, ["ProcessGroup", None, False]),
    ],
)
def test_settings_of_the_user_are_kept_under_mpirun(given: dict[str, str], shown: list[Any], tmp_path: Path) -> None:
    """With HVD_TORCH=off the program numbers the ranks itself, and torch chooses the backend."""
    given = {name: value or str(free_port()) for name, value in given.items()}
    script = tmp_path / "train.py"
    numbers = f'"tcp://127.0.0.1:{free_port()}", rank=hvd.rank(), world_size=hvd.size()' if "HVD_TORCH" in given else ""
    script.write_text(
        HEAD + INIT + f"dist.init_process_group({'init_method=' if numbers else ''}{numbers})\n"
        "show(type(dist.group.WORLD).__name__, os.environ.get('MASTER_ADDR'), 'RANK' in os.environ, summed())\n"
    )
    printed = good(ran([*MPIRUN, "-np", "2", sys.executable, "-P", str(script)], tmp_path, **given))
    assert [json.loads(line) for line in printed.splitlines()] == [[*shown, 3.0]] * 2


def test_torchrun_keeps_its_own(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        HEAD + INIT + "dist.init_process_group()\n" + OFF.replace("show(", "show(type(dist.group.WORLD).__name__, ")
    )
    command = [
        sys.executable,
        "-P",
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node",
        "2",
        str(script),
    ]
    printed = good(hvdrun("-np", "1", "--", *command))
    assert lines_of(printed, 0) == [json.dumps(["ProcessGroup", list(NAMES), 0, "gloo"])] * 2
