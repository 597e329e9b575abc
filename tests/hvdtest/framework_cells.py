"""A kernel with two detached ranks that have one framework and no torch, for a framework's tests in a notebook's cells.

They train one weight from 1 by stochastic gradient descent: learning rate 0.5, momentum 0.5, ranks' gradients 1 and 2.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hvdtest.environments import environment, quiet
from hvdtest.kernel import Kernel
from hvdtest.launch import TESTS

_GRADIENT = 1.5
FIRST = 1 - 0.5 * _GRADIENT
"""The weight after a step."""

SECOND = FIRST - 0.5 * _GRADIENT - 0.5 * 0.5 * _GRADIENT
"""After another one, with what momentum remembers of the first."""


@contextmanager
def detached_ranks(folder: Path, name: str, lock: str) -> Iterator[Kernel]:
    """Return the kernel kept under a name, in an environment of tests/frameworks/environments."""
    env = {"HVD_SPARES": "0", "PYTHONPATH": str(TESTS), "OMP_NUM_THREADS": "1", **quiet()}
    with Kernel(folder, name, env, environment(lock)) as kernel:
        kernel.run(f"%hvd start -np 2 --keep {name}")
        yield kernel
        if not kernel.ended:
            kernel.run("%hvd stop")
