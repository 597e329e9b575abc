"""Programs in the style of torchrun, started by hvdrun: no set-up of ours, and torch's own backends as written."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from hvdtest.hvdrun import good, hvdrun, lines_of, ran

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


def test_torchrun_keeps_its_own(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        HEAD + "dist.init_process_group()\n" + OFF.replace("show(", "show(type(dist.group.WORLD).__name__, ")
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
