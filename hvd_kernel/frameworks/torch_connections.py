"""Connections of torch's own process groups, closed to release the ranks that wait in them for a rank that has failed.

Gloo cannot abort an operation: a rank waits until a connection is closed. So a failed rank closes its connections, its
peers raise, and close theirs. The groups cannot be used afterwards; all ranks destroy them before the next cell.
"""

from __future__ import annotations

import contextlib
import os
import socket
import stat
import sys
import threading
from types import ModuleType
from typing import Any

from hvd_kernel.protocol import modules

_DISTRIBUTED = "torch.distributed"
_C10D = "distributed_c10d"
_CREATE = "_new_process_group_helper"
_FOLDER = f"{os.sep}torch{os.sep}distributed{os.sep}"
_OF_GLOO = "gloo/transport"


class _Connections:
    """Sockets of torch's own groups by descriptor, with their inodes, and whether they were closed."""

    def __init__(self) -> None:
        self.inodes: dict[int, int] = {}
        self.are_closed = False


_recorded = _Connections()


def watch(distributed: ModuleType) -> None:
    """Record the connections of each group that is created from now on. Idempotent.

    ``init_process_group`` and ``new_group`` call one private function; torch 2.4 to 2.13 have no public place for it.
    """
    c10d = getattr(distributed, _C10D, None)
    create = getattr(c10d, _CREATE, None)
    if create is None or create.__module__ == __name__:
        return

    def create_recorded(*args: Any, **options: Any) -> Any:
        before = sockets()
        created = create(*args, **options)
        if not is_on_core(created[0]):
            record(before)
        return created

    setattr(c10d, _CREATE, create_recorded)


def record(before: dict[int, int]) -> None:
    """Record the connections that were made since ``before`` as those of a group, which are forgotten once closed."""
    open_now = sockets()
    earlier = {fd: inode for fd, inode in _recorded.inodes.items() if open_now.get(fd) == inode}
    made = {fd: inode for fd, inode in open_now.items() if before.get(fd) != inode}
    _recorded.inodes = earlier | made


def sockets() -> dict[int, int]:
    """Return the inodes of this process's sockets by descriptor."""
    inodes = {}
    for name in os.listdir("/proc/self/fd"):  # noqa: PTH208 - pathlib is slow to import
        with contextlib.suppress(OSError):  # the descriptor of listdir
            status = os.fstat(int(name))
            if stat.S_ISSOCK(status.st_mode):
                inodes[int(name)] = status.st_ino
    return inodes


def close() -> None:
    """Close the connections of torch's own groups, which releases every rank that waits in them. Any thread."""
    inodes, _recorded.inodes = _recorded.inodes, {}
    for fd, inode in inodes.items():
        with contextlib.suppress(OSError):  # closed by torch
            if os.fstat(fd).st_ino == inode:
                with socket.socket(fileno=os.dup(fd)) as connection:  # torch closes the descriptor itself
                    if _may_be_gloos(connection):
                        connection.shutdown(socket.SHUT_RDWR)
                        _recorded.are_closed = True


def _may_be_gloos(connection: socket.socket) -> bool:
    """Return whether a socket is a TCP connection: without its listener Gloo would terminate."""
    is_tcp = connection.family in {socket.AF_INET, socket.AF_INET6} and connection.type is socket.SOCK_STREAM
    return is_tcp and not connection.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)


def are_closed() -> bool:
    """Return whether torch's own groups cannot be used any more."""
    return _recorded.are_closed


def discard_groups() -> None:
    """Destroy the groups of torch's own backends, so that the program creates others. A group on our core is kept.

    A default group of torch's is destroyed with all others.
    """
    _recorded.inodes, _recorded.are_closed = {}, False
    distributed = modules.loaded(_DISTRIBUTED)
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return
    if not is_on_core(distributed.group.WORLD):  # ours continues on the new engine
        distributed.destroy_process_group()
        return
    for group in list(getattr(distributed, _C10D)._world.pg_map):  # noqa: SLF001 - torch has no public list
        if not is_on_core(group):
            distributed.destroy_process_group(group)


def is_on_core(group: Any) -> bool:
    """Return whether our core runs a group's operations, and knows which ranks are missing."""
    return hasattr(group, "engine")


def is_lost(error: BaseException) -> bool:
    """Return whether an error of Gloo reports a connection that another rank has closed."""
    return isinstance(error, RuntimeError) and _OF_GLOO in str(error)


def main_thread_waits() -> bool:
    """Return whether the main thread is in a function of torch.distributed. Any thread."""
    frame = sys._current_frames().get(threading.main_thread().ident or 0)  # noqa: SLF001 - there is no other way
    return frame is not None and _FOLDER in frame.f_code.co_filename
