"""The example scripts at a small size, and the launchers that must give the same loss, to the last bit."""

from __future__ import annotations

import re
import sys
from pathlib import Path

from hvdtest.hvdrun import good, ran

FOLDER = Path(__file__).resolve().parents[2] / "notebooks" / "scripts"
SMALL = {  # what is run -> its script and arguments
    "digits": "digits.py --epochs 1",
    "digits-16-bits": "digits.py --epochs 1 --fp16-allreduce --gradient-predivide-factor 2 --use-mixed-precision",
    "digits-adasum": "digits.py --epochs 1 --use-adasum",
    "resnet": "resnet50_synthetic.py --model tiny --batch-size 4 --image-size 32 "
    "--num-warmup-batches 1 --num-iters 2 --num-batches-per-iter 2",
    "resnet-16-bits": "resnet50_synthetic.py --model tiny --batch-size 4 --image-size 32 --fp16-allreduce "
    "--num-warmup-batches 0 --num-iters 1 --num-batches-per-iter 2",
    "chars": "chars.py --steps 4 --batch-size 4 --length 32 --layers 1 --passes 2 --sample 20",
}
MPIRUN = [f"{sys.prefix}/bin/mpirun", "--allow-run-as-root", "--oversubscribe", "--bind-to", "none"]


def final_loss(text: str) -> float:
    found = re.findall(r"final loss (\S+)", text)
    assert len(found) == 1, f"rank 0 alone says the loss, once:\n{text}"
    return float.fromhex(found[0])


def output_of(launcher: list[str], np: int, line: str) -> str:
    """Return the output of the ranks; plain mpirun needs Horovod's name installed."""
    python = [sys.executable, *(["-m", "hvd_kernel.compat"] if launcher is MPIRUN else [])]
    return good(ran([*launcher, "-np", str(np), *python, *line.split()], FOLDER, seconds=240))
