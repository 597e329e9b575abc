"""The typed face of the extension. Thin: a tensor is (pointer, shape, dtype number); errors are hvd_kernel.errors."""

from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias, final

Exchange: TypeAlias = Callable[[bytes], list[bytes]]

AVERAGE: int  # 0
SUM: int  # 1
ADASUM: int  # 2
MIN: int  # 3
MAX: int  # 4
PRODUCT: int  # 5

@final
class Buffer:
    """64-byte-aligned memory owned by the core; readable and writable through the buffer protocol (bytes, 1-d)."""

    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def dtype(self) -> int: ...
    @property
    def pointer(self) -> int: ...
    def __len__(self) -> int: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...

@final
class TcpBootstrap:
    """Collective exchange of bytes over a port of rank 0. Callable: bytes of this rank -> bytes of all ranks."""

    def __init__(self, rank: int, size: int, host: str, port: int, timeout_s: float = 30.0) -> None: ...
    def __call__(self, mine: bytes, /) -> list[bytes]: ...
    def close(self) -> None: ...

@final
class LocalHub:
    """n ranks as threads of one process (tests): Engine(rank, size, hub)."""

    def __init__(self, size: int, options: Mapping[str, str] = ...) -> None: ...

@final
class Engine:
    """One rank's engine. Every method may be called from any thread; waiting releases the GIL.

    A tensor argument is (pointer, shape, dtype): contiguous CPU memory that the caller keeps alive and does not
    touch until the handle is done. An empty name becomes "<op>.noname.<handle>".
    Enqueue raises ValueError at once for a duplicate name or a bad argument; everything the ranks find out
    together is raised by wait(), on every rank.
    """

    def __init__(
        self, rank: int, size: int, exchange: Exchange | LocalHub, options: Mapping[str, str] = ...
    ) -> None: ...
    @property
    def rank(self) -> int: ...
    @property
    def size(self) -> int: ...
    @property
    def local_rank(self) -> int: ...
    @property
    def local_size(self) -> int: ...
    @property
    def cross_rank(self) -> int: ...
    @property
    def cross_size(self) -> int: ...
    @property
    def is_homogeneous(self) -> bool: ...
    def transport_to(self, peer: int) -> str: ...
    def allreduce(
        self,
        name: str,
        tensors: Sequence[tuple[int, int, tuple[int, ...], int]],
        op: int,
        prescale: float = 1.0,
        postscale: float = 1.0,
    ) -> int:
        """tensors: (input pointer, output pointer, shape, dtype) each; more than one is a group, all or nothing."""
    def allgather(self, name: str, tensor: tuple[int, tuple[int, ...], int]) -> int: ...
    def broadcast(self, name: str, tensor: tuple[int, int, tuple[int, ...], int], root_rank: int) -> int: ...
    def barrier(self, name: str = "") -> int: ...
    def poll(self, handle: int) -> bool:
        """True when wait() would not block. ValueError for a handle never given out or already waited for."""
    def wait(self, handle: int, timeout_s: float = -1.0) -> Buffer | None:
        """Block until done; allgather's result is the Buffer. Looks at Python's signals, so Ctrl-C works.

        Raises the operation's error; errors.HvdTimeout after timeout_s (the handle stays valid then).
        """
    def abort(self, message: str) -> None:
        """Release every rank from whatever it waits in: each raises errors.RankFailed naming this rank."""
    def aborted(self) -> str | None:
        """The sentence of the abort that ended this engine, or None while it works."""
    def pending(self) -> list[dict[str, object]]:
        """What waits here: {"name", "op", "seconds", "missing"}; missing (ranks not yet here) on rank 0, else []."""
    def counters(self) -> dict[str, int]:
        """Monotonic since init: "ops", "bytes", "busy_ns" (executing), "wait_ns" (user threads in wait), "cycles"."""
    def trace(self, cursor: int) -> tuple[int, list[tuple[int, int, str, str, int]]]:
        """Records since cursor: (start_ns, duration_ns, phase, name, bytes); and the cursor for the next call."""
    def shutdown(self) -> None:
        """Leave. Pending operations here and on peers that need this rank end with an error. Idempotent."""

__version__: str
