"""Cells written for Horovod, and the example scripts, in a real kernel: their final loss is that of ``hvdrun``."""

from __future__ import annotations

from pathlib import Path

import pytest
from hvdtest.hvdrun import HVDRUN
from hvdtest.kernel import Kernel
from hvdtest.scripts import FOLDER, SMALL, final_loss, output_of

pytestmark = [pytest.mark.jupyter, pytest.mark.mp, pytest.mark.timeout(400)]

PROGRAM = """%%hvdrun -np 2
import subprocess, sys, torch
import horovod
import horovod.torch as hvd
from horovod.torch.elastic import ObjectState, run
child = subprocess.run([sys.executable, "-c", "import horovod; print(horovod.__version__)"], capture_output=True, text=True)
failed = []

@run
def work(state):
    state.steps += 1
    if hvd.rank() == 1 and not failed:
        failed.append(1)
        raise hvd.HorovodInternalError("once")
    return hvd.allreduce(torch.full((2,), rank + 1.0), op=hvd.Sum, name="x").tolist(), state.steps

horovod.__version__, child.stdout.strip(), work(ObjectState(hvd.broadcast_object, hvd.rank, steps=0))
"""
FAILS = """%%hvdrun
@run
def breaks(state):
    if rank == 1:
        raise KeyError("my bug")
    hvd.barrier()

breaks(ObjectState(steps=0))
"""

PLAIN = """
import horovod

def total(scale):
    import torch
    import horovod.torch as hvd
    hvd.init()
    return hvd.rank(), hvd.allreduce(torch.full((2,), scale * (hvd.rank() + 1.0)), op=hvd.Sum).tolist()

horovod.run(total, (10,), np=2)
"""
LIGHT = """
import sys, horovod, horovod.common.exceptions
horovod.__version__, sorted({'torch', 'mpi4py', 'hvd_kernel._native'} & set(sys.modules))
"""


def test_horovods_names_in_a_plain_cell(tmp_path_factory: pytest.TempPathFactory) -> None:
    with Kernel(tmp_path_factory.mktemp("plain")) as kernel:
        assert kernel.run(LIGHT).shown == ["('0.28.1', [])"]
        assert kernel.run(PLAIN, timeout=120).shown == ["[(0, [30.0, 30.0]), (1, [30.0, 30.0])]"]
        both = kernel.run("%%hvdrun --local\nimport horovod\nprint(horovod.__version__)")
        assert both.text() == "[0-1] 0.28.1\n0.28.1\n"


@pytest.mark.parametrize("told", ["0", pytest.param("sometimes", marks=pytest.mark.nightly)])
def test_kernel_with_compat_switched_off(tmp_path: Path, told: str) -> None:
    with Kernel(tmp_path, env={"HVD_COMPAT": told}) as kernel:
        failed = kernel.run("import horovod", allow_error=True)
        assert failed.error.endswith("ModuleNotFoundError: No module named 'horovod'")
        assert kernel.run("%hvd status").text() == "no ranks are running\n"


@pytest.mark.cluster(2)
def test_horovods_names_and_recovery_in_a_cell(kernel: Kernel) -> None:
    outcome = kernel.run(PROGRAM, timeout=120)
    assert outcome.error == ""
    assert outcome.shown == ["[0-1] ('0.28.1', '0.28.1', ([3.0, 3.0], 1))"]
    failed = kernel.run(FAILS, allow_error=True)  # rank 0 does not wait for a rank that left
    assert "KeyError: 'my bug'" in failed.error
    after = kernel.run("%%hvdrun\nhvd.allreduce(torch.ones(1), name='y', op=hvd.Sum).tolist()")
    assert after.shown == ["[0-1] [2.0]"]
    missing = kernel.run("%%hvdrun\nimport horovod.ray.nothing", allow_error=True)
    assert "hvd_kernel stands in for Horovod in this process" in missing.error


@pytest.mark.cluster(2)
@pytest.mark.parametrize(
    "which",
    [
        pytest.param(which, marks=() if which == "chars" else pytest.mark.nightly)
        for which in ("digits", "digits-16-bits", "digits-adasum", "resnet", "chars")
    ],
)
def test_cell_and_hvdrun_agree_on_the_final_loss(kernel: Kernel, which: str) -> None:
    outcome = kernel.run(f"%%hvdrun\n%run {FOLDER}/{SMALL[which]}", timeout=120)
    assert final_loss(outcome.text()) == final_loss(output_of(HVDRUN, 2, SMALL[which]))


@pytest.mark.cluster(2)
def test_variables_of_a_script_persist(kernel: Kernel) -> None:
    kernel.run(f"%%hvdrun\n%run {FOLDER}/{SMALL['chars']}", timeout=120)
    assert kernel.run("%%hvdrun\nlen(model.write(5))").shown == ["[0-1] 9"]
