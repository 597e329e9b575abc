"""%hvd stacks: where every rank is. Ranks are asked; one that does not answer is looked at from outside.

Words.
  inquiry   one question to some ranks, that never waits by itself
  written   the stack that a rank's signal handler writes, without Python's lock
"""

from __future__ import annotations

import linecache
import os
import re
import select
import socket
import sysconfig
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from hvd_kernel.diagnosis.stall import report
from hvd_kernel.magics.context import Context
from hvd_kernel.magics.options import Options, resolve
from hvd_kernel.processes.lifetime import is_stopped
from hvd_kernel.protocol.messages import STACK_PIPE, STACK_SIGNAL, Frame, Whereabouts, from_wire

if TYPE_CHECKING:
    from hvd_kernel.cluster import Session

PATIENCE_S = 1.0
"""A rank that has not answered by then does not run Python."""

_WRITTEN_S = 1.0  # from one piece to the next: the handler writes a line in many, and may be stopped between two
_LAST = (b" in _run_module_as_main\n", b"\n  ...\n")  # a rank's outermost call; or there are more than can be written
_LINE = re.compile(r'File "(?P<file>.*)", line (?P<line>\d+) in (?P<function>.*)')
_FOLDED = re.compile(r"/(hvd_kernel|IPython|ipykernel|ipyparallel|asyncio|tornado)/")
_CELL = re.compile(r"/ipykernel_\d+/\d+\.py$")
_INSTALLED = tuple({sysconfig.get_path(name) + os.sep for name in ("stdlib", "platstdlib", "purelib", "platlib")})


def stacks(context: Context, options: Options) -> None:
    """Show where ranks are, also while a cell runs on them."""
    session = context.manager.current()
    context.writer().say(report(look(session, resolve(options.ranks, session.n))))


def look(session: Session, ranks: Collection[int], patience: float = PATIENCE_S) -> dict[int, Whereabouts]:
    """Return where ranks are. Waits for slow ones, then looks from outside."""
    inquiry = Inquiry(session, ranks)
    inquiry.settle(patience)
    return inquiry.answers() | inquiry.from_outside(inquiry.silent())


class Inquiry:
    """Asks ranks where they are."""

    def __init__(self, session: Session, ranks: Collection[int]) -> None:
        self._session = session
        self._ranks = set(ranks)
        self._gather = session.post("stacks", sorted(ranks), urgent=True)

    def settle(self, seconds: float) -> None:
        """Wait until all have answered, or until the time is over."""
        self._gather.settle(seconds)

    def answers(self) -> dict[int, Whereabouts]:
        """Return what ranks have answered by now."""
        said = self._gather.so_far()
        return {r: _whereabouts(r, content) for r, content in said.items() if r in self._ranks}

    def silent(self) -> set[int]:
        """Return the ranks that have not answered."""
        return self._ranks - set(self._gather.so_far())

    def from_outside(self, ranks: Collection[int]) -> dict[int, Whereabouts]:
        """Return what the machine says about ranks; waits for the signal handlers of those that run."""
        halted, pids, dead = stopped(self._session), local_pids(self._session), set(self._session.dead)
        found: dict[int, Whereabouts] = {}
        for rank in ranks:
            if rank in dead or rank in halted:
                found[rank] = Whereabouts(rank, "dead" if rank in dead else "stopped")
            else:
                run = self._session.latest
                cell = {run.file: f"cell {run.cell}"} if run else {}
                calls = written(self._session.folder, rank, pids[rank], cell) if rank in pids else ()
                found[rank] = Whereabouts(rank, "silent", frames=calls)
        return found


def _whereabouts(rank: int, content: object) -> Whereabouts:
    """Read an answer; an error is the death of the rank, or a rank of another version, which cannot say more."""
    wire = dict(content) if isinstance(content, dict) else {}
    return Whereabouts(rank, "dead") if "error" in wire else from_wire(Whereabouts, wire)


def local_pids(session: Session) -> dict[int, int]:
    """Return the processes of the living ranks on this host."""
    here = socket.gethostname()
    return {each.rank: each.pid for each in session.status() if each.alive and each.host == here}


def stopped(session: Session) -> set[int]:
    """Return the ranks of this host that are stopped, by a signal or a debugger."""
    return {rank for rank, pid in local_pids(session).items() if is_stopped(pid)}


def written(folder: Path, rank: int, pid: int, cells: Mapping[str, str]) -> tuple[Frame, ...]:
    """Have a rank of this host write its stack, and read it; () when it does not even do that.

    cells: what a file's code is called, where that is a cell whose number is known.

    The signal may end a sleep inside C code early, which is why only ranks that do not answer are asked in this way.
    """
    try:
        pipe = os.open(folder / "ipython" / STACK_PIPE.format(rank=rank), os.O_RDONLY | os.O_NONBLOCK)
    except OSError:
        return ()
    try:
        while select.select([pipe], [], [], 0.0)[0] and os.read(pipe, 1 << 16):
            pass  # of an earlier question that was given up
        os.kill(pid, STACK_SIGNAL)
        return tuple(frames(_lines(pipe), cells))
    except ProcessLookupError:
        return ()
    finally:
        os.close(pipe)


def _lines(pipe: int) -> list[str]:
    said = b""
    while not said.endswith(_LAST) and select.select([pipe], [], [], _WRITTEN_S)[0]:
        piece = os.read(pipe, 1 << 16)
        if not piece:  # the rank has ended
            break
        said += piece
    return said.decode(errors="replace").splitlines()


def frames(lines: list[str], cells: Mapping[str, str]) -> list[Frame]:
    """Read what Python's fault handler writes, innermost call first, up to the beginning of the cell. Pure."""
    calls: list[Frame] = []
    for text in lines:
        match = _LINE.search(text)
        if match is None:
            continue
        if match["function"] == "run_code" and "/IPython/" in match["file"]:
            break
        if not _FOLDED.search(match["file"]):
            calls.append(_frame(match["file"], match["line"], match["function"], cells))
    return calls[::-1]


def _frame(file: str, number: str, function: str, cells: Mapping[str, str]) -> Frame:
    cell = bool(_CELL.search(file))
    own = cell or not file.startswith((*_INSTALLED, "<"))
    name = Path(file).name
    place, text = (cells.get(name, "cell"), "") if cell else (name, linecache.getline(file, int(number)).strip())
    return Frame(f"{place}:{number}", "" if function == "<module>" else function, text, own)
