"""Starting ranks begins nothing with CUDA: no cuInit, no context, no plugin, before the first tensor of a device.

A context costs each process hundreds of megabytes and, on a device that others use, seconds; whoever never uses the GPU
should pay neither. torch is the real one, on a host that has one GPU as far as NVML tells (hvdtest/counted_cuda).
"""

from __future__ import annotations

from pathlib import Path

import pytest
from hvdtest.hvdrun import good, hvdrun, lines_of
from hvdtest.kernel import Kernel
from hvdtest.launch import TESTS

COUNTED = TESTS / "hvdtest" / "counted_cuda"
BEGIN = """
import hvd_kernel.torch as hvd, os, torch
hvd.init()
"""
LOOK = """
maps = open("/proc/self/maps").read()
print(torch.cuda.device_count(), [each for each in ("libhvd_cuda", "libcuda", "fake_cuda") if each in maps], os.environ["CUDA_MODULE_LOADING"])
"""
WORK = """
model = torch.nn.Linear(4, 4)
hvd.broadcast_parameters(model.state_dict(), root_rank=0)
optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), named_parameters=model.named_parameters())
model(torch.ones(2, 4)).sum().backward()
optimizer.step()
hvd.broadcast_object({"a": 1})
hvd.log(loss=1.0)
"""


def counted(tmp_path: Path) -> tuple[dict[str, str], Path]:
    file = tmp_path / "begun"
    file.touch()
    path = f"{COUNTED}:{TESTS}"
    return {"PYTHONPATH": path, "COUNTED_CUDA": str(file), "HVD_GPU": "core"}, file


@pytest.mark.mp
def test_cuda_is_not_started_in_a_rank_of_hvdrun(tmp_path: Path) -> None:
    env, begun = counted(tmp_path)
    text = good(hvdrun("-np", "2", script=BEGIN + WORK + LOOK, **env))
    assert [lines_of(text, rank) for rank in range(2)] == [["1 [] LAZY"]] * 2
    assert begun.read_text() == ""


@pytest.mark.mp
@pytest.mark.nightly
def test_started_cuda_is_detected(tmp_path: Path) -> None:
    env, begun = counted(tmp_path)
    good(hvdrun("-np", "1", script=BEGIN + "torch.cuda.is_available()", **env))
    assert begun.read_text().startswith("cudaGetDeviceCount in -c\n")


@pytest.mark.jupyter
@pytest.mark.mp
@pytest.mark.nightly
def test_cuda_is_not_started_in_a_rank_of_a_notebook(tmp_path: Path) -> None:
    env, begun = counted(tmp_path)
    with Kernel(tmp_path, env=env) as kernel:
        seen = kernel.run(f"%%hvdrun -np 2\nimport os, torch\n{WORK}{LOOK}\nprint(device)", timeout=150)
        assert seen.text() == "[0-1] 1 [] LAZY\n[0-1] cuda:0\n"
        kernel.run("%hvd status")
        kernel.run("%hvd check model")
        kernel.run("%hvd memory")
        kernel.run("%%hvdrun\nimport os, signal\nif rank: os.kill(os.getpid(), signal.SIGKILL)", allow_error=True)
        kernel.run("%hvd respawn", timeout=120)
        assert kernel.run(f"%%hvdrun\nimport os, torch\n{LOOK}").text() == "[0-1] 1 [] LAZY\n"
    assert begun.read_text() == ""
