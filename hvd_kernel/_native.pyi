"""Types of the extension. A tensor is (pointer, shape, dtype number); errors are those of hvd_kernel.errors."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias, final

Exchange: TypeAlias = Callable[[bytes], list[bytes]]
# (input, shape, dtype), or with an output; on a device also its number and the stream (a pointer).
In: TypeAlias = tuple[int, tuple[int, ...], int] | tuple[int, tuple[int, ...], int, int, int]
InOut: TypeAlias = tuple[int, int, tuple[int, ...], int] | tuple[int, int, tuple[int, ...], int, int, int]

AVERAGE: int  # 0
SUM: int  # 1
ADASUM: int  # 2
MIN: int  # 3
MAX: int  # 4
PRODUCT: int  # 5

def dlpack_place(capsule: object) -> tuple[int, tuple[int, ...], int, int]:
    """Pointer, shape, dtype and device of a DLPack capsule's tensor, which owns the memory. ValueError: the core cannot use it."""

def dlpack_capsule(buffer: Buffer) -> object:
    """The core's memory as a DLPack capsule, which keeps it alive."""

@final
class Buffer:
    """64-byte-aligned memory owned by the core; readable and writable through the buffer protocol (bytes, 1-d).

    On a device it has ``__cuda_array_interface__`` instead (version 3, bytes, 1-d; without a stream: wait for the
    outcome's event first) and raises BufferError. It is freed after all work that was queued until then on streams that
    have waited for the event; it may outlive the engine.
    """

    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def dtype(self) -> int: ...
    @property
    def pointer(self) -> int: ...
    @property
    def device(self) -> int:
        """-1: on the host."""
    @property
    def __cuda_array_interface__(self) -> dict[str, object]:
        """On a device; on the host AttributeError."""
    def __len__(self) -> int: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...

@final
class DeviceEvent:
    """Event after which the results of an operation on a device are complete, and its inputs no longer used.

    Both methods raise the typed error if that will never happen: the device has failed, or the engine has ended.
    """

    def stream_wait(self, stream: int) -> None:
        """Make later work of the stream wait for the operation. Does not block."""
    def query(self) -> bool:
        """True if the operation is complete. Never blocks."""

@final
class Outcome:
    """Result of an operation, apart from the memory that the caller provided."""

    @property
    def buffers(self) -> list[Buffer]: ...
    @property
    def sizes(self) -> list[int]: ...
    @property
    def number(self) -> int: ...
    @property
    def event(self) -> DeviceEvent | None:
        """None: an operation on the host."""

@final
class TcpBootstrap:
    """Collective exchange of bytes over a port of rank 0. Callable: bytes of this rank -> bytes of all ranks.

    pidfds: process handles by rank. If one of these processes has ended, errors.RankDied is raised without waiting.
    """

    def __init__(
        self,
        rank: int,
        size: int,
        host: str,
        port: int,
        timeout_s: float = 30.0,
        secret: str = "",
        pidfds: Mapping[int, int] = ...,
    ) -> None: ...
    def __call__(self, payload: bytes, /) -> list[bytes]: ...
    def close(self) -> None: ...

@final
class LocalHub:
    """n ranks as threads of one process (tests): Engine(rank, size, hub)."""

    def __init__(self, size: int, options: Mapping[str, str] = ...) -> None: ...

@final
class Engine:
    """One rank's engine. Every method may be called from any thread; waiting releases the GIL.

    A tensor argument is (pointer, shape, dtype): contiguous CPU memory that the caller keeps alive and does not
    touch until the handle is done. On a device: (..., device, stream), contiguous memory of that device which is
    ready after the work queued on the stream so far; all tensors of a call have the same device and stream. The caller
    keeps it alive until a stream has waited for the outcome's event. An empty name becomes "<op>.noname.<handle>".
    Enqueue raises ValueError immediately for a duplicate name or a bad argument; errors that the ranks detect together
    are raised by wait(), on every rank. waits=True: the caller waits for it next, so it may start in this call.
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
    def make_current(self, current: bool = True) -> None:
        """Make this engine the one that plugins find in the core's C table, or with False no longer.

        The current engine is kept alive.
        """
    def transport_to(self, peer: int) -> str: ...
    def allreduce(
        self,
        name: str,
        tensors: Sequence[InOut],
        op: int,
        prescale: float = 1.0,
        postscale: float = 1.0,
        process_set: int = 0,
        waits: bool = False,
    ) -> int:
        """tensors: (input pointer, output pointer, shape, dtype) each; more than one is a group, all or nothing."""
    def allgather(self, name: str, tensors: Sequence[In], process_set: int = 0, waits: bool = False) -> int:
        """Outcome.buffers: one per tensor."""
    def broadcast(
        self,
        name: str,
        tensors: Sequence[InOut],
        root_rank: int,
        process_set: int = 0,
        waits: bool = False,
    ) -> int:
        """root_rank: a rank of the engine, also in a process set."""
    def send(self, tensors: Sequence[InOut], destination: int, tag: int = 0, waits: bool = False) -> int:
        """The n-th send to a rank with a tag meets that rank's n-th recv of it, of the same shapes."""
    def recv(self, tensors: Sequence[InOut], source: int, tag: int = 0, waits: bool = False) -> int:
        """Write to the output pointers."""
    def probe(self, tag: int = 0, waits: bool = False) -> int:
        """Outcome.number: a rank that has called send with the tag, whose recv was not called."""
    def alltoall(
        self,
        name: str,
        tensor: In,
        splits: Sequence[int] | None = None,
        process_set: int = 0,
        waits: bool = False,
    ) -> int:
        """splits: rows of dimension 0 for every member; None: equal shares. Outcome.buffers[0], Outcome.sizes."""
    def reducescatter(
        self,
        name: str,
        tensors: Sequence[InOut],
        op: int,
        prescale: float = 1.0,
        postscale: float = 1.0,
        process_set: int = 0,
        waits: bool = False,
    ) -> int:
        """The output holds this member's rows: the first dim0 % n members get one row more."""
    def barrier(self, name: str = "", process_set: int = 0, waits: bool = False) -> int: ...
    def join(self) -> int:
        """Outcome.number: the rank that joined last."""
    def add_process_set(self, ranks: Sequence[int]) -> int:
        """Collective over all ranks. Outcome.number: the id."""
    def remove_process_set(self, process_set: int) -> int:
        """Collective over all ranks. Outcome.number: 1 if the set existed, else 0."""
    def process_set_ranks(self, process_set: int) -> list[int]:
        """Member ranks; empty if there is no set with this id."""
    def allocate_shared(self, nbytes: int, device: int = -1) -> int:
        """Collective over all ranks: memory that the ranks of a host reduce in place, without a copy.

        Outcome.number: the region. On a device: Outcome.buffers has this rank's part, valid while it is referenced.
        If a rank has no shared memory, the handle fails on every rank.
        """
    def release_shared(self, region: int) -> int:
        """Collective. No rank may use the region any more."""
    def shared_memory(self, region: int) -> memoryview:
        """This rank's part: writable bytes; valid until it is released or the engine shuts down."""
    def start_timeline(self, path: str, mark_cycles: bool = False, goes_on: bool = False) -> None:
        """goes_on: append to the file, after a mark for the reset."""
    def stop_timeline(self) -> None: ...
    def device_trouble(self, device: int) -> str:
        """Reason why tensors on that device cannot be used here, "" if they can. The first call loads the plugin.

        If no device can be used, a call with one is a ValueError, and starts no operation.
        """
    def poll(self, handle: int) -> bool:
        """True if wait() would not block, and work on a device is complete. ValueError for a handle that does not exist or was already waited for."""
    def wait(self, handle: int, timeout_s: float = -1.0) -> Outcome | None:
        """Block until done; None if there is no result. Handles Python's signals, so Ctrl-C works.

        An operation on a device is done when it has been queued on the device; Outcome.event marks its completion.

        Raises the operation's error; errors.HvdTimeout after timeout_s (the handle stays valid then).
        """
    def abort(self, message: str) -> None:
        """Release every rank from any operation in which it waits: each raises errors.RankFailed naming this rank."""
    def park(self, parked: bool) -> None:
        """Announce whether this rank waits for the user at a prompt: ranks that wait for it then are not stalled."""

    def blocked(
        self, at: float, waits: Sequence[tuple[int, str]], may_request: Sequence[str], run: int = 0, place: str = ""
    ) -> None:
        """Report that this rank requests nothing else before the operations that it waits for have ended.

        All ranks that wait for each other get Mismatch, with the operations and places of all. Without waits: the rank
        has ended the notebook's cell ``run``, and requests nothing until ``resumed``.

        at: time.monotonic() before the call of ``pending`` that returned waits: (process set, name) of all operations
        that this rank has requested. If they have changed since, the report is dropped. may_request: last parts of names
        that the rank may still request, "b" of "a/b". place: line at which it waits, as in "cell 3:2".
        """
    def resumed(self) -> None:
        """Withdraw the report that this rank has ended a cell."""
    def aborted(self) -> str | None:
        """Message of the abort that ended this engine, or None while it works."""
    def pending(self) -> list[dict[str, object]]:
        """Pending operations: {"name", "op", "seconds", "process_set", "missing"}; missing (ranks that have not requested it) on rank 0, else []."""
    def counters(self) -> dict[str, int]:
        """Monotonic since init: "ops", "bytes", "cycles".

        "busy_ns": executing, on the host or a device; "wait_ns": the part of it in which user threads, or streams, waited.
        """
    def trace(self, cursor: int) -> tuple[int, list[tuple[int, int, str, str, int, int]]]:
        """Records since cursor: (start_ns, duration_ns, phase, name, bytes, detail); and the cursor for the next call."""
    def shutdown(self) -> None:
        """Shut down. Pending operations here, and on peers that need this rank, end with an error. Idempotent."""

def write_c_stack_at(signal: int, descriptor: int) -> None:
    """Write the C stack of the thread that handles the signal, followed by "end of stack", without the GIL."""

def core_table() -> int:
    """Address of the core's C table (native/c_api/hvd_core.h), for plugins and ctypes."""

__version__: str

def fast_allreduce(
    kind: type,
    parameter: type,
    exchange: object,
    everybody: object,
    live: dict[int, Any],
    owner: Callable[[], Engine],
    /,
) -> tuple[Callable[..., Any], ...] | None:
    """See FastCalls in hvd_kernel.core.handles; None if the version of the exchange is unknown."""

def fast_synchronize(live: dict[int, Any], handle: int, entry: tuple[Engine, Any, Any], /) -> Any:
    """Wait for an operation of one of fast_allreduce's functions, and return its output. Removes the handle from ``live``."""
