"""Engines of process groups: which one a group uses, the names of its operations, and their memory.

The default group uses the engine of ``hvd.init()``, and so does a group of all its ranks. A group of some ranks has an
engine of its own, which its members connect over the group's store: ``new_group(use_local_synchronization=True)`` is
called by the members alone, while the core registers process sets on all ranks. Such an engine is aborted when the
engine of ``hvd.init()`` is, because the failed rank may be a member that would not arrive.

Terms.
  live   operations that the core may still execute, whose buffers must stay alive; by name
  main   the engine of ``hvd.init()``
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable, Sequence
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Any

import numpy as np

from hvd_kernel.core import call_stack, group_engines, ops, session, topology
from hvd_kernel.core.process_sets import global_process_set
from hvd_kernel.core.tensor import Max
from hvd_kernel.errors import HorovodInternalError
from hvd_kernel.formatting.operation_names import torch_group_prefix
from hvd_kernel.formatting.rank_labels import rank_list
from hvd_kernel.settings import lookup
from hvd_kernel.torch.async_ops import fast, is_plain

if TYPE_CHECKING:
    from torch import Tensor

    from hvd_kernel._native import Engine
    from hvd_kernel.torch.distributed.work import HvdWork

BACKEND = "hvd"
"""Name of the backend in torch."""

NAMES = 256
"""Names of a group's operations repeat after this many, so that the core's cache of responses can serve them."""

POLL_S = 0.1
"""Seconds between two checks whether the main engine was aborted, while groups have engines of their own."""

OTHER_RANK = (
    "init_process_group was called with rank={rank}, but this process is rank {actual} of hvd.init(): pass "
    "rank=hvd.rank() and world_size=hvd.size()."
)
OTHER_RANKS = (
    "The process group was created for rank {rank} of {size}, but this process is rank {actual_rank} of {actual_size} "
    "now: call destroy_process_group() and init_process_group() again."
)
CLOSED = "The process group {name} was destroyed: create it again with init_process_group() or new_group()."
NOT_JOINED = "Not all {size} ranks of process group {name} have joined it: {error}"

_NUMBER = "hvd.torch_groups"  # operation by which ranks agree on the next number of a group
_abandoned: list[Any] = []  # operations in flight whose group was destroyed: the main engine may still use their memory


class GroupEngine:
    """Engine of a group: starts its operations under names that are equal on all ranks.

    Operations of a group are numbered in the order of their calls. The number alone is the name, so that ranks that
    call different operations get Mismatch.
    """

    def __init__(self, engine: Engine, prefix: str) -> None:
        self._engine: Engine | None = engine
        self._prefix = prefix
        self._names = [f"{prefix}.{number}" for number in range(NAMES)]
        self._lock = threading.RLock()
        self._started = 0
        self._messages = count()
        self._live: dict[str, HvdWork] = {}

    @property
    def engine(self) -> Engine:
        """The core's engine.

        Raises
        ------
        HorovodInternalError
            The group was destroyed.
        """
        if self._engine is None:
            raise HorovodInternalError(CLOSED.format(name=self._prefix))
        return self._engine

    @property
    def started(self) -> int:
        """Number of operations that this rank has started."""
        return self._started

    def start(
        self, work: HvdWork, call: str, arguments: Sequence[Any], *, waits: bool, name: str | None = None
    ) -> None:
        """Enqueue a collective by the engine's method ``call``; its work is kept alive until it is complete.

        A name in use waits for its earlier operation. ``name``: from ``reduce_at_once``; None: the next one.
        """
        with self._lock:
            engine = self.engine
            self._drop_completed()
            used = self._names[self._started % NAMES] if name is None else name
            earlier = self._live.get(used)
            if earlier is not None:
                earlier.complete()
            self._enqueue(work, used, engine, partial(getattr(engine, call), used, *arguments, process_set=0), waits)
            self._started += name is None

    def reduce_at_once(self, tensor: Tensor, op: int, timeout: float | None) -> str | None:  # noqa: ARG002
        """Reduce a tensor in place by the core's shortest call, and wait.

        Returns
        -------
        str or None
            "" if the tensor is reduced. Otherwise nothing was sent: the name to pass to ``start``; None: the next one.
        """
        return None

    def start_message(self, work: HvdWork, call: str, arguments: Sequence[Any], *, waits: bool) -> None:
        """Enqueue an operation that not all ranks call, which the core names; its work is kept alive likewise."""
        with self._lock:
            engine = self.engine
            self._drop_completed()
            name = f"{call}.{next(self._messages)}"
            self._enqueue(work, name, engine, partial(getattr(engine, call), *arguments), waits)

    def _enqueue(self, work: HvdWork, name: str, engine: Engine, call: Callable[..., int], waits: bool) -> None:
        """Call the engine. The work is live before: an interrupt may arrive after the core took the buffers."""
        self._live[name] = work
        try:
            work.begin(engine, call(waits=waits), partial(self._live.pop, name, None))
        except Exception:
            del self._live[name]  # rejected: the core does not use the buffers
            raise
        except BaseException:  # an interrupt: the core may have accepted them
            _abandoned.append(self._live.pop(name, work))
            raise

    def _drop_completed(self) -> None:
        """Complete operations without a waiter, oldest first, until one is still in flight."""
        for work in list(self._live.values()):
            if not work.is_completed():
                return

    def close(self) -> None:
        """Release the engine. Idempotent."""
        raise NotImplementedError


class _GroupNumbers:
    """Numbers of groups on the main engine, equal on all ranks: also if a rank is newer than the others."""

    def __init__(self) -> None:
        self._last = 0

    def agree(self) -> None:
        """Continue after the highest number of any rank. All ranks call this together."""
        self._last = int(ops.allreduce(np.array([self._last]), name=_NUMBER, op=Max)[0])

    def next(self) -> int:
        """Return the number of a new group."""
        self._last += 1
        return self._last


_numbers = _GroupNumbers()


class SharedEngine(GroupEngine):
    """The engine of ``hvd.init()``, for a group of all ranks; a later one if it has the same rank and size."""

    def __init__(self, rank: int, size: int, members: str) -> None:
        super().__init__(session.engine(), torch_group_prefix(str(_numbers.next()), members))
        self._rank, self._size = rank, size

    @property
    def engine(self) -> Engine:
        """The core's engine.

        Raises
        ------
        HorovodInternalError
            The group was destroyed, or the ranks have other numbers since the last ``init()``.
        NotInitialized
            After ``hvd.shutdown()``.
        """
        bound = super().engine
        current = session.engine()
        if current is not bound:
            if (current.rank, current.size) != (self._rank, self._size):
                numbers = {"actual_rank": current.rank, "actual_size": current.size}
                raise HorovodInternalError(OTHER_RANKS.format(rank=self._rank, size=self._size, **numbers))
            self._engine, self._started = current, 0
            self._live.clear()
            _abandoned.clear()
        return current

    def reduce_at_once(self, tensor: Tensor, op: int, timeout: float | None) -> str | None:
        """Reduce a tensor as ``GroupEngine.reduce_at_once``. The lock is free during the wait."""
        flat = tensor  # as ``start`` sends it
        if tensor.dim() != 1:
            if not is_plain(tensor) or not tensor.is_contiguous():
                return None
            flat = tensor.view(-1)
        with self._lock:
            if session.engine() is not self._engine:
                _ = self.engine  # follows to the current one
            name = self._names[self._started % NAMES]
            if name in self._live:
                return None
            self._started += 1
        limit = -1.0 if timeout is None else timeout
        done = fast.allreduce(flat, flat, None, name, op, 1.0, 1.0, global_process_set, limit)
        return name if done is None else ""

    def close(self) -> None:
        """Leave the engine to the program; keep the memory of operations that are in flight."""
        self._engine = None
        _abandoned.extend(work for work in self._live.values() if not work.is_done)
        self._live.clear()


class OwnEngine(GroupEngine):
    """An engine among the members of a group, numbered as in the group."""

    def __init__(self, store: Any, rank: int, name: str, ranks: Sequence[int], members: str) -> None:
        from hvd_kernel._native import Engine  # noqa: PLC0415 - only a rank loads the extension

        options = lookup.engine_options(dict(os.environ))
        options.pop("timeline", None)  # a file of the main engine
        size = len(ranks)
        engine = Engine(rank, size, _StoreExchange(store, rank, size, name), options)
        super().__init__(engine, torch_group_prefix(f" {name}", members))
        group_engines.add(engine, tuple(ranks))
        self._process = os.getpid()
        self.main = session.engine() if session.is_initialized() else None
        if self.main is not None:
            _relay.watch(self)
        _own_engines.add(self)

    def abort(self, reason: str) -> None:
        """Release every rank of the group from any operation."""
        engine = self._engine
        if engine is not None:
            engine.abort(reason)

    def close(self) -> None:
        """Shut the engine down, which the other members see as an orderly exit."""
        engine, self._engine = self._engine, None
        if engine is not None and self._process == os.getpid():
            engine.shutdown()
            group_engines.remove(engine)
            self._live.clear()

    def leak(self) -> None:
        """Drop the engine in a forked child."""
        if self._engine is not None:
            group_engines.remove(self._engine, is_ours=False)
            session.leak(self._engine)
            self._engine = None


class _StoreExchange:
    """Exchange of bytes among the members over the group's store.

    Keys contain how often this rank has connected an engine over the same prefix, so that values left by an earlier
    group of this name are not read.
    """

    def __init__(self, store: Any, rank: int, size: int, name: str) -> None:
        self._store, self._rank, self._size, self._name = store, rank, size, name
        self._epoch = store.add(f"hvd/epoch/{rank}", 1)
        self._rounds = count()

    def __call__(self, payload: bytes) -> list[bytes]:
        base = f"hvd/{self._epoch}/{next(self._rounds)}"
        self._store.set(f"{base}/{self._rank}", bytes(payload))
        try:
            return [bytes(self._store.get(f"{base}/{rank}")) for rank in range(self._size)]
        except RuntimeError as error:  # torch's DistStoreError: its timeout
            raise HorovodInternalError(NOT_JOINED.format(size=self._size, name=self._name, error=error)) from error


class _AbortRelay:
    """Thread that aborts the groups' own engines after the main engine was aborted."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Forget everything, as in a forked child."""
        self._lock = threading.Lock()
        self._watched: weakref.WeakSet[OwnEngine] = weakref.WeakSet()
        self._thread: threading.Thread | None = None

    def watch(self, engine: OwnEngine) -> None:
        """Abort the engine when its main engine is aborted."""
        with self._lock:
            self._watched.add(engine)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="hvd-torch-groups", daemon=True)
                self._thread.start()

    def _run(self) -> None:
        pause = threading.Event()
        while not pause.wait(POLL_S):
            with self._lock:
                engines = [engine for engine in self._watched if engine.main is not None]
                if not engines:
                    self._thread = None
                    return
            for engine in engines:
                self._check(engine)
            del engines

    def _check(self, engine: OwnEngine) -> None:
        reason = engine.main.aborted() if engine.main is not None else None
        if reason is not None:
            engine.main = None
            engine.abort(reason)


_relay = _AbortRelay()
_own_engines: weakref.WeakSet[OwnEngine] = weakref.WeakSet()


def _forget() -> None:
    for engine in list(_own_engines):
        engine.leak()
    _relay.reset()


os.register_at_fork(after_in_child=_forget)
call_stack.register_core_caller(__name__)  # by async_ops.fast


def group_engine(
    store: Any, rank: int, size: int, name: str, *, ranks: Sequence[int], parent: SharedEngine | None
) -> GroupEngine:
    """Return the engine for a new group.

    Parameters
    ----------
    store
        The group's store; a prefix of the program's.
    rank, size
        This process in the group.
    name
        The group's name, equal on its members.
    ranks
        The group's ranks among all; empty for that of ``init_process_group``.
    parent
        For a group of all ranks in their order, the default group's engine if it is the main one.

    Raises
    ------
    ValueError
        The default group has as many ranks as ``hvd.init()``, and numbers this process differently.
    """
    members = rank_list(ranks) if ranks else ""
    if not ranks and not session.is_initialized() and topology.is_launched(os.environ):
        session.init()
    if not ranks and session.is_initialized() and session.size() == size:
        if session.rank() != rank:
            raise ValueError(OTHER_RANK.format(rank=rank, actual=session.rank()))
        _numbers.agree()
        return SharedEngine(rank, size, members)
    if parent is not None:
        return SharedEngine(rank, size, members)
    return OwnEngine(store, rank, name, ranks or range(size), members)
