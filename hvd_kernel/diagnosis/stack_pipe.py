"""Stacks that a rank of this host writes to its named pipe at a signal, without Python's lock: asked for, and read."""

from __future__ import annotations

import os
import select
from pathlib import Path

from hvd_kernel.protocol.messages import STACK_END, STACK_PIPE, STACK_SIGNAL

_WRITTEN_S = 1.0  # from one piece to the next: the handler writes a line in many, and may be stopped between two
_PIECE = 1 << 16


def read(folder: Path, rank: int, pid: int) -> list[str]:
    """Have a rank write its stacks, and return the lines; none when it does not even do that.

    The signal may end a sleep inside C code early, which is why only ranks that do not answer are asked in this way.
    """
    try:
        pipe = os.open(folder / "ipython" / STACK_PIPE.format(rank=rank), os.O_RDONLY | os.O_NONBLOCK)
    except OSError:
        return []
    try:
        while select.select([pipe], [], [], 0.0)[0] and os.read(pipe, _PIECE):
            pass  # of an earlier question that was given up
        os.kill(pid, STACK_SIGNAL)
        return _lines(pipe)
    except ProcessLookupError:
        return []
    finally:
        os.close(pipe)


def _lines(pipe: int) -> list[str]:
    said = b""
    while not said.endswith(STACK_END) and select.select([pipe], [], [], _WRITTEN_S)[0]:
        piece = os.read(pipe, _PIECE)
        if not piece:  # the rank has ended
            break
        said += piece
    return said.decode(errors="replace").splitlines()
