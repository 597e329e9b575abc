"""Connections of torch's default group, closed to release the ranks that wait in it for a rank that has failed.

Gloo cannot abort an operation: a rank waits until a connection is closed. So a failed rank closes its connections, its
peers raise, and close theirs. The group cannot be used afterwards; all ranks destroy it before the next cell.
"""

from __future__ import annotations

import contextlib
import os
import socket
import stat
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from hvd_kernel.protocol import modules

_DISTRIBUTED = "torch.distributed"
_FOLDER = f"{os.sep}torch{os.sep}distributed{os.sep}"
_OF_GLOO = "gloo/transport"


class _Connections:
    """Sockets of the default group by descriptor, with their inodes, and whether they were closed."""

    def __init__(self) -> None:
        self.inodes: dict[int, int] = {}
        self.are_closed = False


_default = _Connections()


@contextmanager
def recorded() -> Iterator[None]:
    """Record the connections that are made in the block as those of the default group.

    Those of a group on our core are not recorded: the core releases its ranks, and its store is used again.
    """
    before = _sockets()
    try:
        yield
    finally:
        made = {fd: inode for fd, inode in _sockets().items() if before.get(fd) != inode}
        _default.inodes = {} if _is_on_core() else made
        _default.are_closed = False


def _sockets() -> dict[int, int]:
    """Return the inodes of this process's sockets by descriptor."""
    inodes = {}
    for name in os.listdir("/proc/self/fd"):  # noqa: PTH208 - pathlib is slow to import
        with contextlib.suppress(OSError):  # the descriptor of listdir
            status = os.fstat(int(name))
            if stat.S_ISSOCK(status.st_mode):
                inodes[int(name)] = status.st_ino
    return inodes


def close() -> None:
    """Close the connections of the default group, which releases every rank that waits in it. Any thread."""
    inodes, _default.inodes = _default.inodes, {}
    _default.are_closed |= bool(inodes)
    for fd, inode in inodes.items():
        with contextlib.suppress(OSError):  # closed by torch
            if os.fstat(fd).st_ino == inode:
                with socket.socket(fileno=os.dup(fd)) as connection:  # torch closes the descriptor itself
                    if _may_be_gloos(connection):
                        connection.shutdown(socket.SHUT_RDWR)


def _may_be_gloos(connection: socket.socket) -> bool:
    """Return whether a socket is a TCP connection: without its listener Gloo would terminate."""
    is_tcp = connection.family in {socket.AF_INET, socket.AF_INET6} and connection.type is socket.SOCK_STREAM
    return is_tcp and not connection.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)


def are_closed() -> bool:
    """Return whether the default group cannot be used any more."""
    return _default.are_closed


def discard_group() -> None:
    """Destroy a default group of torch's own backends, so that ``init_process_group`` creates another one."""
    _default.inodes, _default.are_closed = {}, False
    if _is_initialized() and not _is_on_core():  # ours continues on the new engine
        sys.modules[_DISTRIBUTED].destroy_process_group()


def _is_initialized() -> bool:
    distributed = modules.loaded(_DISTRIBUTED)
    return distributed is not None and bool(distributed.is_available() and distributed.is_initialized())


def _is_on_core() -> bool:
    return _is_initialized() and hasattr(sys.modules[_DISTRIBUTED].group.WORLD, "engine")


def is_lost(error: BaseException) -> bool:
    """Return whether an error of Gloo reports a connection that another rank has closed."""
    return isinstance(error, RuntimeError) and _OF_GLOO in str(error)


def main_thread_waits() -> bool:
    """Return whether the main thread is in a function of torch.distributed. Any thread."""
    frame = sys._current_frames().get(threading.main_thread().ident or 0)  # noqa: SLF001 - there is no other way
    return frame is not None and _FOLDER in frame.f_code.co_filename
