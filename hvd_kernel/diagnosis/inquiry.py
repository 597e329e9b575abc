"""Inquiry into where a cluster's ranks are: query them, and inspect a rank that does not answer from outside.

From outside, a rank of this host writes its stacks to its named pipe at a signal, without Python's lock: Python's calls
by ``faulthandler``, C functions by glibc's ``backtrace``.

Terms.
  inquiry      one query to some ranks; it blocks only in ``wait_all``
  trampoline   frame through which the kernel enters a signal handler: above it on the stack is the handler, below it
               the interrupted code
"""

from __future__ import annotations

import linecache
import os
import re
import select
import socket
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from hvd_kernel.formatting.installed_files import is_installed
from hvd_kernel.processes.lifetime import is_stopped
from hvd_kernel.protocol.messages import STACK_END, STACK_PIPE, STACK_SIGNAL, Frame, Whereabouts, from_content

PATIENCE_S = 1.0
"""Seconds after which a rank that has not answered is taken to run no Python code."""


class Answers(Protocol):
    """Collects the ranks' answers to one query."""

    def wait_all(self, timeout: float) -> object:
        """Wait until all answers have arrived, or until the timeout."""

    def so_far(self) -> Mapping[int, Mapping[str, Any]]:
        """Return the answers that have arrived."""


class Cluster(Protocol):
    """The part of ``cluster.Session`` that an inquiry needs."""

    @property
    def n(self) -> int:
        """The number of ranks."""

    @property
    def dead(self) -> Sequence[int]:
        """Ranks whose process is gone."""

    @property
    def folder(self) -> Path:
        """The private folder of the ranks on this host."""

    @property
    def latest(self) -> Any:
        """The current or most recent cell: its number ``cell`` and the file name ``file`` of its code; or None."""

    def status(self) -> Sequence[Any]:
        """Every rank's process: ``rank``, ``pid``, ``host``, ``alive``."""

    def post(self, handler: str, ranks: Sequence[int] | None, *, urgent: bool = False) -> Answers:
        """Send a query without waiting for the answers."""


def locate(cluster: Cluster, ranks: Collection[int], patience: float = PATIENCE_S) -> dict[int, Whereabouts]:
    """Return where ranks are. Waits for slow ranks, then inspects the silent ones from outside."""
    inquiry = Inquiry(cluster, ranks)
    inquiry.wait_all(patience)
    return inquiry.answers() | inquiry.from_outside(inquiry.silent())


class Inquiry:
    """Queries ranks for where they are."""

    def __init__(self, cluster: Cluster, ranks: Collection[int]) -> None:
        self._cluster = cluster
        self._ranks = set(ranks)
        self._answers = cluster.post("stacks", sorted(ranks), urgent=True)

    def wait_all(self, timeout: float) -> None:
        """Wait until all ranks have answered, or until the timeout."""
        self._answers.wait_all(timeout)

    def answers(self) -> dict[int, Whereabouts]:
        """Return the positions of the ranks that have answered."""
        answers = self._answers.so_far()
        return {rank: _whereabouts(rank, content) for rank, content in answers.items() if rank in self._ranks}

    def silent(self) -> set[int]:
        """Return the ranks that have not answered."""
        return self._ranks - set(self._answers.so_far())

    def from_outside(self, ranks: Collection[int]) -> dict[int, Whereabouts]:
        """Return the positions of ranks as seen by the host; waits for the signal handlers of running ranks."""
        halted, pids, dead = stopped(self._cluster), local_pids(self._cluster), set(self._cluster.dead)
        places: dict[int, Whereabouts] = {}
        for rank in ranks:
            if rank in dead or rank in halted:
                places[rank] = Whereabouts(rank, "dead" if rank in dead else "stopped")
            else:
                places[rank] = self._by_signal(rank, pids.get(rank))
        return places

    def _by_signal(self, rank: int, pid: int | None) -> Whereabouts:
        lines = [] if pid is None else request_stacks(self._cluster.folder, rank, pid)
        run = self._cluster.latest
        cells = {run.file: f"cell {run.cell}"} if run else {}
        return Whereabouts(rank, "silent", frames=python_calls(lines, cells), native=c_functions(lines))


def _whereabouts(rank: int, content: object) -> Whereabouts:
    """Decode an answer; an error means that the rank has died, or that it runs an incompatible version."""
    wire = dict(content) if isinstance(content, dict) else {}
    return Whereabouts(rank, "dead") if "error" in wire else from_content(Whereabouts, wire)


def local_pids(cluster: Cluster) -> dict[int, int]:
    """Return the processes of the living ranks on this host."""
    here = socket.gethostname()
    return {process.rank: process.pid for process in cluster.status() if process.alive and process.host == here}


def stopped(cluster: Cluster) -> set[int]:
    """Return the ranks of this host that are stopped, by a signal or a debugger."""
    return {rank for rank, pid in local_pids(cluster).items() if is_stopped(pid)}


_WRITTEN_S = 1.0  # between two pieces: the handler writes a line in several pieces, and may be stopped between them
_PIECE = 1 << 16
_CALL = re.compile(r'File "(?P<file>.*)", line (?P<line>\d+) in (?P<function>.*)')
_FUNCTION = re.compile(r"^(?P<place>\S+\(.*\))\s*\[0x[0-9a-f]+\]$")
_MACHINERY = re.compile(r"/(hvd_kernel|IPython|ipykernel|ipyparallel|asyncio|tornado)/|^<frozen (runpy|importlib)")
_CELL = re.compile(r"/ipykernel_\d+/\d+\.py$")


def request_stacks(folder: Path, rank: int, pid: int) -> list[str]:
    """Signal a rank to write its stacks, and return the lines; an empty list if its handler does not run.

    The signal may end a sleep inside C code early, so request stacks only from ranks that do not answer messages.
    """
    try:
        pipe = os.open(folder / "ipython" / STACK_PIPE.format(rank=rank), os.O_RDONLY | os.O_NONBLOCK)
    except OSError:
        return []
    try:
        while select.select([pipe], [], [], 0.0)[0] and os.read(pipe, _PIECE):
            pass  # rest of an earlier request that was given up
        os.kill(pid, STACK_SIGNAL)
        return _read_lines(pipe)
    except ProcessLookupError:
        return []
    finally:
        os.close(pipe)


def _read_lines(pipe: int) -> list[str]:
    text = b""
    while not text.endswith(STACK_END) and select.select([pipe], [], [], _WRITTEN_S)[0]:
        piece = os.read(pipe, _PIECE)
        if not piece:  # the rank has exited
            break
        text += piece
    return text.decode(errors="replace").splitlines()


def python_calls(lines: Sequence[str], cells: Mapping[str, str]) -> tuple[Frame, ...]:
    """Return Python's calls, outermost first; for a cell's code, from the cell on.

    Parameters
    ----------
    lines
        The written lines, innermost call first.
    cells
        Maps the file names of cells to their names, if they are known.
    """
    return tuple(_calls(lines, cells))[::-1]


def _calls(lines: Sequence[str], cells: Mapping[str, str]) -> Iterator[Frame]:
    for match in filter(None, map(_CALL.search, lines)):
        if match["function"] == "run_code" and "/IPython/" in match["file"]:
            return
        if not _MACHINERY.search(match["file"]):
            yield _frame(match["file"], match["line"], match["function"], cells)


def c_functions(lines: Sequence[str]) -> tuple[str, ...]:
    """Return the C functions that the innermost Python call is in, innermost first: ``libc.so.6(sleep+0x3a)``."""
    places = [match["place"] for match in map(_FUNCTION.match, lines) if match]
    return below_signal(places[1:])  # the first function is the writer of the stack


def below_signal(places: Sequence[str]) -> tuple[str, ...]:
    """Return the functions between a signal and the interpreter.

    The first line is a trampoline. Handlers are on the stack too: the interrupted code is below the last trampoline.
    """
    if not places:
        return ()
    trampoline = len(places) - 1 - places[::-1].index(places[0])
    below = places[trampoline + 1 :]
    ends = [at for at, place in enumerate(below) if "_PyEval_EvalFrame" in place]
    return tuple(map(_short, below[: ends[0]] if ends else below))


def _short(place: str) -> str:
    path, parenthesis, offset = place.partition("(")
    return f"{Path(path).name}{parenthesis}{offset}"


def _frame(file: str, number: str, function: str, cells: Mapping[str, str]) -> Frame:
    cell = bool(_CELL.search(file))
    name = Path(file).name
    place, text = (cells.get(name, "cell"), "") if cell else (name, linecache.getline(file, int(number)).strip())
    is_user_code = cell or not is_installed(file)
    return Frame(f"{place}:{number}", "" if function == "<module>" else function, text, is_user_code)
