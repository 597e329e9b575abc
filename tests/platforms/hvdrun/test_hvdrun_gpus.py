"""hvdrun --gpus: devices of ranks under every launcher, and a missing device. No GPU is needed."""

from __future__ import annotations

import pytest
from hvdtest.hvdrun import EITHER, good, hvdrun, lines_of

from hvd_kernel.settings import gpus

pytestmark = [pytest.mark.mp, pytest.mark.usefixtures("mark")]

SEEN = "import os; print(os.environ.get('CUDA_VISIBLE_DEVICES'), os.environ.get('HVD_GPUS'))"


@EITHER
@pytest.mark.parametrize(
    ("words", "env", "seen"),
    [
        ((), {}, "None None"),
        (("--gpus", "none"), {}, "-1 None"),
        ((), {"HVD_GPUS": "none"}, "-1 None"),
        (("--gpus", "auto"), {"HVD_GPUS": "none", "CUDA_VISIBLE_DEVICES": "5"}, "5 None"),
        (("--gpus", "all"), {"CUDA_VISIBLE_DEVICES": "5"}, "None None"),
        (("--gpus", "1"), {"CUDA_VISIBLE_DEVICES": "5,7"}, "7 None"),
    ],
    ids=["nothing", "none", "variable", "auto", "all", "numbers"],
)
def test_every_rank_sees_the_same_devices(how: str, words: tuple[str, ...], env: dict[str, str], seen: str) -> None:
    text = good(hvdrun("-np", "2", how, *words, script=SEEN, **env))
    assert [lines_of(text, rank) for rank in range(2)] == [[seen], [seen]]


@EITHER
def test_missing_device_starts_no_rank(how: str) -> None:
    done = hvdrun("-np", "2", how, "--gpus", "0,2", script=SEEN, CUDA_VISIBLE_DEVICES="5,7")
    assert (done.returncode, done.stdout) == (1, "")
    words = (
        "--gpus 0,2: device 2 is not there: there are devices 0 to 1 among those of CUDA_VISIBLE_DEVICES=5,7; "
        "name others, or auto."
    )
    assert words in done.stderr
    assert "cannot be started on " in done.stderr


def test_invalid_values_of_gpus() -> None:
    done = hvdrun("-np", "2", "--gpus", "0,0", "true")
    assert done.returncode == 2
    assert "argument --gpus: 0,0: device 0 is named twice: name it once." in done.stderr
    assert "hvdrun --help" in done.stderr


@pytest.mark.skipif(gpus.count() != 0, reason="there is a GPU")
@pytest.mark.gpu  # a skip in CI is right where there is a GPU
def test_a_host_without_a_gpu() -> None:
    done = hvdrun("-np", "2", "--gpus", "0", script=SEEN)
    assert done.returncode == 1
    assert "device 0 is not there: there is no GPU on this host" in done.stderr
