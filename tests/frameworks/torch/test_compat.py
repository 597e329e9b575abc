"""A program written for Horovod, unchanged, on real ranks that were started with the variables of a launcher."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from hvdtest.launch import clean_environment, free_port, horovod_variables

from hvd_kernel import compat

pytestmark = pytest.mark.mp

PROGRAM = """
import torch
import horovod.torch as hvd
from horovod.common.process_sets import ProcessSet
from horovod.torch.elastic import ElasticSampler, TorchState

torch.manual_seed(1)
torch.set_num_threads(1)
hvd.init()
model = torch.nn.Linear(3, 1)
optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), named_parameters=model.named_parameters())
data = torch.arange(24.0).reshape(8, 3) / 24
state = TorchState(model=model, optimizer=optimizer, sampler=ElasticSampler(data, shuffle=False), steps=0)
failed = []

@hvd.elastic.run
def train(state):
    while state.steps < 4:
        if state.steps == 2 and hvd.rank() == 1 and not failed:
            failed.append(1)
            raise hvd.HorovodInternalError("once")
        optimizer.zero_grad()
        (model(data[state.sampler.get_indices(0, 2)]) ** 2).mean().backward()
        optimizer.step()
        state.steps += 1
        state.commit()

train(state)
total = hvd.allreduce(torch.tensor([float(hvd.rank() + 1)]), op=hvd.Sum, name="total")
print(hvd.rank(), hvd.size(), total.item(), [p.tolist() for p in model.parameters()], flush=True)
"""


def launched(np: int, folder: Path, command: list[str], **env: str) -> list[str]:
    """Return the output of each rank; the last word of the command is the program's file."""
    program = folder / "train.py"
    program.write_text(PROGRAM)
    port = free_port()
    ranks = [
        subprocess.Popen(
            [sys.executable, *command, str(program)],
            env=clean_environment(**horovod_variables(rank, np, port)) | env,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(np)
    ]
    try:
        said = [rank.communicate(timeout=90) for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()
    assert [rank.returncode for rank in ranks] == [0] * np, "\n".join(err for _, err in said)
    return [out.strip() for out, _ in said]


@pytest.mark.parametrize(
    "np", [2, pytest.param(1, marks=pytest.mark.nightly), pytest.param(3, marks=pytest.mark.nightly)]
)
def test_a_program_for_horovod(np: int, tmp_path: Path) -> None:
    by_environment = launched(np, tmp_path, [], **compat.rank_environment({}))
    by_module = launched(np, tmp_path, ["-m", "hvd_kernel.compat"])
    assert by_environment == by_module
    for rank, line in enumerate(by_environment):
        assert line.startswith(f"{rank} {np} {np * (np + 1) / 2} ")
        assert line.split(" ", 1)[1] == by_environment[0].split(" ", 1)[1], "every rank has the same parameters"


def test_horovod_is_absent_without_the_opt_in(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(PROGRAM)
    env = {k: v for k, v in os.environ.items() if k not in {"PYTHONPATH", "HVD_COMPAT"}}
    done = subprocess.run(
        [sys.executable, str(tmp_path / "train.py")], env=env, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert "ModuleNotFoundError: No module named 'horovod'" in done.stderr
