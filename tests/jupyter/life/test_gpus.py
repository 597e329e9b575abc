"""%%hvdrun --gpus in a real kernel: devices of ranks and spares, and a missing device. No GPU is needed."""

from __future__ import annotations

import pytest
from hvdtest.kernel import Kernel

from hvd_kernel.settings import gpus

pytestmark = [pytest.mark.jupyter, pytest.mark.mp, pytest.mark.cluster(0)]

SEEN = "import os; (os.environ.get('CUDA_VISIBLE_DEVICES'), os.environ.get('HVD_GPUS'), str(device))"
HIDDEN = "('-1', None, 'cpu')"


@pytest.mark.nightly
def test_ranks_and_replacements_see_no_device(kernel: Kernel) -> None:
    assert kernel.run(f"%%hvdrun -np 2 --gpus none\n{SEEN}", timeout=120).shown == [f"[0-1] {HIDDEN}"]
    rows = [row.split() for row in kernel.run("%hvd status").text().splitlines()]
    assert [row[-1] for row in rows] == ["device", "cpu", "cpu"]
    died = kernel.run("%%hvdrun\nimport os, signal\nif rank: os.kill(os.getpid(), signal.SIGKILL)", allow_error=True)
    assert died.reply["ename"] == "RankDied"
    kernel.run("%hvd respawn", timeout=120)
    assert kernel.run(f"%%hvdrun\n{SEEN}").shown == [f"[0-1] {HIDDEN}"], "the fresh rank knew it before torch"
    assert [row.split()[-1] for row in kernel.run("%hvd status").text().splitlines()][1:] == ["cpu", "cpu"]


@pytest.mark.nightly
def test_change_of_gpus_restarts_the_ranks(kernel: Kernel) -> None:
    kernel.run("%%hvdrun -np 2 --gpus none\n1", timeout=120)
    said = kernel.run("%hvd start --gpus all", timeout=120).text()
    assert said == "other GPUs: the ranks start again.\nranks 0-1 ready\n"
    seen = kernel.run("%%hvdrun\nimport os; (os.environ.get('CUDA_VISIBLE_DEVICES'), os.environ.get('HVD_GPUS'))")
    assert seen.shown == ["[0-1] (None, None)"]
    assert kernel.run("%hvd restart", timeout=120).text() == "ranks 0-1 ready\n", "and stay what they are"


@pytest.mark.skipif(gpus.count() != 0, reason="every device up to 999 would have to be there")
@pytest.mark.gpu  # a skip in CI is right where there is a GPU
def test_missing_device_starts_no_rank(kernel: Kernel) -> None:
    kernel.run("%hvd stop")
    refused = kernel.run("%%hvdrun -np 2 --gpus 0,1\nrank", allow_error=True)
    assert refused.error == (
        "ConfigError: --gpus 0,1: device 0 is not there: there is no GPU on this host; "
        "write --gpus none or leave it out."
    )
    assert kernel.run("%hvd status").text() == "no ranks are running\n"
    assert kernel.run("%%hvdrun -np 2\nmine = rank\nmine").shown == ["[0] 0\n[1] 1"], "it is not remembered"
    again = kernel.run("%hvd restart --gpus 0,1", allow_error=True)
    assert again.error == refused.error
    assert kernel.run("%%hvdrun\nmine").shown == ["[0] 0\n[1] 1"], "nothing was lost for what is not there"
    wrong = kernel.run("%%hvdrun --gpus 0-1\nrank", allow_error=True)
    assert "'0-1' is not a device number: write 0,1 or auto or all or none" in wrong.error
