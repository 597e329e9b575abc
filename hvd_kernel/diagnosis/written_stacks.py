"""Stacks that a rank wrote at a signal, read: Python's calls by ``faulthandler``, C functions by glibc's ``backtrace``.

Terms.
  trampoline   where the kernel enters a signal's handler: above it on the stack is the handler, below it what was
               interrupted
"""

from __future__ import annotations

import linecache
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from hvd_kernel.formatting.installed_files import is_installed
from hvd_kernel.protocol.messages import Frame

_CALL = re.compile(r'File "(?P<file>.*)", line (?P<line>\d+) in (?P<function>.*)')
_FUNCTION = re.compile(r"^(?P<place>\S+\(.*\))\s*\[0x[0-9a-f]+\]$")
_MACHINERY = re.compile(r"/(hvd_kernel|IPython|ipykernel|ipyparallel|asyncio|tornado)/|^<frozen (runpy|importlib)")
_CELL = re.compile(r"/ipykernel_\d+/\d+\.py$")


def python_calls(lines: Sequence[str], cells: Mapping[str, str]) -> tuple[Frame, ...]:
    """Return Python's calls, outermost first, of a cell's from the cell on.

    Parameters
    ----------
    lines
        What was written, innermost call first.
    cells
        What a file's code is called, where that is a cell whose number is known.
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
    return below_signal(places[1:])  # the first one has written it


def below_signal(places: Sequence[str]) -> tuple[str, ...]:
    """Return the functions between a signal and the interpreter.

    The handlers are on the stack too: what was interrupted lies below the last trampoline, which is the first line too.
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
    own = cell or not is_installed(file)
    name = Path(file).name
    place, text = (cells.get(name, "cell"), "") if cell else (name, linecache.getline(file, int(number)).strip())
    return Frame(f"{place}:{number}", "" if function == "<module>" else function, text, own)
