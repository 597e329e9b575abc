"""A rank's log as files: their names, the format of the index, and how to read an excerpt. Used by ranks and notebook.

Each rank writes its output to two files of raw bytes, and an index of JSON lines next to them. Any process of this
user may read them while they grow, and after the rank has died.

Terms.
  index      {"cell": 7, "stdout": at, "stderr": at}     where a cell's text begins; it ends where the next one begins
             {"lost": "stdout", "at": at, "bytes": n, "why": text}          bytes that could not be written there
             {"first": "stdout", "at": at}               everything before was deleted to make room
  excerpt    the end of a cell's text, or of everything
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

STREAMS = ("stdout", "stderr")
MAX_BYTES = 256 * 1024
"""Limit of an excerpt; for more text, read the file itself."""

_BLOCK = 64 * 1024


def folder(ipython: str) -> Path:
    """Return the folder of the logs of all ranks with this IPYTHONDIR."""
    return Path(ipython) / "logs"


def path(logs: Path, rank: int, stream: str) -> Path:
    """Return the path of a rank's stream, or of its "index"."""
    return logs / f"rank-{rank}.{stream}"


def excerpt(logs: Path, rank: int, stream: str, cell: int | None = None, lines: int = 100) -> str:
    """Return the last lines of a rank's stream, of one cell or of all.

    Raises
    ------
    LookupError
        If the rank has not run that cell.
    OSError
        If the rank has no log here.
    """
    rows = list(_rows(path(logs, rank, "index")))
    with path(logs, rank, stream).open("rb") as file:
        begin, end = _window(rows, stream, cell, os.fstat(file.fileno()).st_size)
        start, data = _last(file.fileno(), begin, end, lines)
    lost = [row for row in rows if row.get("lost") == stream and start <= row["at"] <= end]
    for row in reversed(lost):
        note = f"\n[{row['bytes']:,} bytes are missing here: {row['why']}]\n".encode()
        data = data[: row["at"] - start] + note + data[row["at"] - start :]
    return data.decode(errors="replace")


def _rows(index: Path) -> Iterator[dict[str, Any]]:
    for line in index.read_bytes().splitlines():
        try:
            yield json.loads(line)
        except ValueError:
            continue  # the disk was full, or the rank died, while the row was written


def _window(rows: list[dict[str, Any]], stream: str, cell: int | None, size: int) -> tuple[int, int]:
    first = max((row["at"] for row in rows if row.get("first") == stream), default=0)
    if cell is None:
        return first, size
    starts = [(row["cell"], row[stream]) for row in rows if "cell" in row]
    at = max((i for i, (number, _) in enumerate(starts) if number == cell), default=None)
    if at is None:
        raise LookupError(f"it has not run cell {cell}")
    end = starts[at + 1][1] if at + 1 < len(starts) else size
    return max(first, starts[at][1]), max(first, end)


def _last(descriptor: int, begin: int, end: int, lines: int) -> tuple[int, bytes]:
    """Read backwards until there are enough lines, or the excerpt is full."""
    start, data = end, b""
    while start > begin and len(data) < MAX_BYTES and data[:-1].count(b"\n") < lines:
        before = max(begin, start - _BLOCK)
        data = os.pread(descriptor, start - before, before) + data
        start = before
    kept = data.splitlines(keepends=True)[-lines:]
    whole = b"".join(kept)
    return end - len(whole), whole
