"""Stacks that a rank of this host writes to its named pipe at a signal, without Python's lock: request and parse them.

Python's calls are written by ``faulthandler``, C functions by glibc's ``backtrace``.

Terms.
  trampoline   frame through which the kernel enters a signal handler: above it on the stack is the handler, below it
               the interrupted code
"""

from __future__ import annotations

import linecache
import os
import re
import select
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from hvd_kernel.formatting.installed_files import is_installed
from hvd_kernel.protocol.messages import STACK_END, STACK_PIPE, STACK_SIGNAL, Frame

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
