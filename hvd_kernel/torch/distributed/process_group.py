"""The process group of the backend: torch's methods, which start operations of ``operations`` on the group's engine.

torch calls the methods with lists of tensors and an options object, from Python and, by name, from C++. Python code may
also call the short forms, as in ``group.broadcast(tensor, 0)``. Methods that torch has renamed have both names.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from datetime import timedelta
from typing import Any, NoReturn

import torch
from torch import Tensor
from torch.distributed import ProcessGroup, ReduceOp, Work

from hvd_kernel.errors import HvdTimeout
from hvd_kernel.torch.distributed.checks import check_count
from hvd_kernel.torch.distributed.groups import BACKEND, GroupEngine
from hvd_kernel.torch.distributed.operations import MESSAGES, OPERATIONS, Member
from hvd_kernel.torch.distributed.reductions import CORE_OPS
from hvd_kernel.torch.distributed.work import COMPLETE, LATE, CombinedWork, HvdWork, WaiterThread, for_cpp, seconds_of

NO_MONITORED_BARRIER = (
    "monitored_barrier is not available in the hvd backend: call barrier(), whose error names the rank that fails."
)

FORMER_NAMES = {
    "_allgather_base": "all_gather_single",
    "allgather_into_tensor_coalesced": "all_gather_single_coalesced",
    "_reduce_scatter_base": "reduce_scatter_single",
    "reduce_scatter_tensor_coalesced": "reduce_scatter_single_coalesced",
    "alltoall_base": "all_to_all_single",
}
"""Names before torch 2.13 -> their names since; torch calls either."""


class HvdProcessGroup(ProcessGroup):
    """Ranks whose collectives run on the core.

    Created by ``init_process_group("hvd")`` and ``new_group(backend="hvd")``. Every operation returns a work. All ranks
    of the group call its operations in the same order.

    Parameters
    ----------
    engine
        The engine that runs the operations.
    options
        torch's description of the group: rank, size, store and timeout.

    Examples
    --------
    >>> group = dist.new_group(backend="hvd")
    >>> tensor = torch.ones(2)
    >>> group.allreduce([tensor]).wait()
    True
    >>> tensor
    tensor([1., 1.])
    """

    def __init__(self, engine: GroupEngine, options: Any) -> None:
        super().__init__(options.group_rank, options.group_size)  # type: ignore[call-arg]
        self._engine, self._store = engine, options.store
        self._member = Member(options.group_rank, options.group_size)
        self._timeout = seconds_of(options.timeout)
        self._group_name, self._group_desc = str(options.group_id), "undefined"
        self._waiter = WaiterThread(f"hvd-torch-{self._group_name}")
        self._receiver = WaiterThread(f"hvd-torch-recv-{self._group_name}")  # from any source
        self._coalesced: list[HvdWork] | None = None
        waiters = self._waiter, self._receiver
        self._release = weakref.finalize(self, _release, waiters, engine)  # before torch 2.6, and at exit

    # Operations.

    def _begin(self, kind: str, options: Any, *arguments: Any, **how: Any) -> HvdWork:
        operation = OPERATIONS[kind](self._member, *arguments)
        timeout = seconds_of(getattr(options, "timeout", None)) or self._timeout
        waits = not getattr(options, "asyncOp", True)  # torch waits next
        work = HvdWork(operation.result, operation.finish, timeout, self._waiter)
        start = self._engine.start_message if kind in MESSAGES else self._engine.start
        start(work, operation.call, operation.arguments, waits=waits, **how)
        if self._coalesced is not None:
            self._coalesced.append(work)
        return work

    def _start(self, kind: str, options: Any, *arguments: Any, **how: Any) -> Work:
        """Start an operation that code of torch in C++ may request, and wait for."""
        return for_cpp(self._begin(kind, options, *arguments, **how))

    def allreduce(self, tensors: Any, opts: Any = None, timeout: timedelta | None = None) -> Work:
        """Reduce a tensor in place on all ranks."""
        name = None
        if self._coalesced is None and not getattr(opts, "asyncOp", True) and len(tensors) == 1:
            name = self._reduce_at_once(tensors[0], opts)
            if name == "":
                return COMPLETE
        options = _options(opts, timeout, reduceOp=ReduceOp.SUM)
        inputs = _list(tensors)
        check_count("all_reduce", len(inputs), 1, "tensor")
        return self._start("all_reduce", options, inputs, options.reduceOp, name=name)

    def _reduce_at_once(self, tensor: Tensor, options: Any) -> str | None:
        """Reduce a tensor by torch's options, and wait; see ``GroupEngine.reduce_at_once``."""
        op = CORE_OPS.get(int(options.reduceOp.op))
        timeout = seconds_of(options.timeout) or self._timeout
        try:
            return None if op is None else self._engine.reduce_at_once(tensor, op, timeout)
        except HvdTimeout:
            raise HvdTimeout(LATE.format(seconds=timeout)) from None

    def allreduce_coalesced(self, tensors: Sequence[Tensor], opts: Any = None) -> Work:
        """Reduce several tensors in place on all ranks, all of them or none."""
        options = _options(opts, None, reduceOp=ReduceOp.SUM)
        return self._start("all_reduce", options, list(tensors), options.reduceOp)

    def reduce(self, tensors: Any, opts: Any = None, op: Any = ReduceOp.SUM, timeout: Any = None) -> Work:
        """Reduce a tensor in place on the root."""
        options = _options(opts, timeout, "rootRank", reduceOp=op)
        return self._start("reduce", options, _only("reduce", tensors), options.reduceOp, options.rootRank)

    def broadcast(self, tensors: Any, opts: Any = None, timeout: timedelta | None = None) -> Work:
        """Copy the root's tensor to all ranks."""
        options = _options(opts, timeout, "rootRank")
        return self._start("broadcast", options, _only("broadcast", tensors), options.rootRank)

    def allgather(self, outputs: Any, inputs: Any, opts: Any = None) -> Work:
        """Copy each rank's tensor into a list on all ranks."""
        tensor = _only("all_gather", inputs)
        return self._start("all_gather", _options(opts, None), _inner("all_gather", outputs), tensor)

    def all_gather_single(self, output: Tensor, tensor: Tensor, opts: Any = None) -> Work:
        """Write all ranks' tensors to one output on all ranks."""
        return self._start("all_gather_into", _options(opts, None), [output], [tensor])

    def all_gather_single_coalesced(
        self, outputs: Sequence[Tensor], inputs: Sequence[Tensor], opts: Any = None
    ) -> Work:
        """Write all ranks' tensors to one output, for several pairs of input and output."""
        return self._start("all_gather_into", _options(opts, None), list(outputs), list(inputs))

    def allgather_coalesced(
        self, outputs: Sequence[Sequence[Tensor]], inputs: Sequence[Tensor], opts: Any = None
    ) -> Work:
        """Copy each rank's list of tensors to all ranks."""
        return self._start("all_gather_coalesced", _options(opts, None), [*outputs], list(inputs))

    def gather(self, outputs: Any, inputs: Any, opts: Any = None, timeout: timedelta | None = None) -> Work:
        """Copy each rank's tensor into a list on the root."""
        options = _options(opts, timeout, "rootRank")
        tensor, lists = _only("gather", inputs), _inner("gather", outputs)
        return self._start("gather", options, lists, tensor, options.rootRank)

    def scatter(self, outputs: Any, inputs: Any, opts: Any = None, timeout: timedelta | None = None) -> Work:
        """Copy one tensor of the root's list to each rank."""
        options = _options(opts, timeout, "rootRank")
        output, lists = _only("scatter", outputs), _inner("scatter", inputs)
        return self._start("scatter", options, output, lists, options.rootRank)

    def reduce_scatter(self, outputs: Any, inputs: Any, opts: Any = None, timeout: timedelta | None = None) -> Work:
        """Reduce a list of tensors, one for each rank, and write this rank's to the output."""
        options = _options(opts, timeout, reduceOp=ReduceOp.SUM)
        output, lists = _only("reduce_scatter", outputs), _inner("reduce_scatter", inputs)
        return self._start("reduce_scatter_list", options, output, lists, options.reduceOp)

    def reduce_scatter_single(self, output: Tensor, tensor: Tensor, opts: Any = None) -> Work:
        """Reduce a tensor of one part for each rank, and write this rank's part to the output."""
        options = _options(opts, None, reduceOp=ReduceOp.SUM)
        return self._start("reduce_scatter", options, [output], [tensor], options.reduceOp)

    def reduce_scatter_single_coalesced(
        self, outputs: Sequence[Tensor], inputs: Sequence[Tensor], opts: Any = None
    ) -> Work:
        """Reduce several tensors, and write this rank's part of each to an output."""
        options = _options(opts, None, reduceOp=ReduceOp.SUM)
        return self._start("reduce_scatter", options, list(outputs), list(inputs), options.reduceOp)

    def all_to_all_single(
        self,
        output: Tensor,
        tensor: Tensor,
        output_splits: Sequence[int] = (),
        input_splits: Sequence[int] = (),
        opts: Any = None,
    ) -> Work:
        """Send rows of one tensor to each rank, and write the received rows to one output."""
        options = _options(opts, None)
        return self._start("all_to_all_single", options, output, tensor, output_splits, input_splits)

    def alltoall(self, outputs: Sequence[Tensor], inputs: Sequence[Tensor], opts: Any = None) -> Work:
        """Send one tensor to each rank, and receive one from each."""
        return self._start("all_to_all", _options(opts, None), list(outputs), list(inputs))

    def barrier(self, opts: Any = None, timeout: timedelta | None = None) -> Work:  # type: ignore[override]
        """Wait until all ranks have called this."""
        return self._start("barrier", _options(opts, timeout))

    def send(self, tensors: Any, dstRank: int, tag: int = 0) -> HvdWork:  # noqa: N803 - C++'s name
        """Send a tensor to a rank; the work is complete once that rank has received it."""
        return self._begin("send", None, _only("send", tensors), dstRank, tag)

    def recv(self, tensors: Any, srcRank: int, tag: int = 0) -> HvdWork:  # noqa: N803 - C++'s name
        """Receive the tensor of a rank's send with the same tag; sends of a rank and tag arrive in order."""
        return self._begin("recv", None, _only("recv", tensors), srcRank, tag)

    def recv_anysource(self, tensors: Any, tag: int = 0) -> HvdWork:
        """Receive from the first rank that sends with the tag; ``source_rank()`` of the work returns its number."""
        output = _only("recv", tensors)

        def receive(source: int) -> None:
            self.recv(output, source, tag).wait()
            work.source = source

        work = self._begin("probe", None, output, tag, receive)
        self._receiver.add(work)
        return work

    def monitored_barrier(self, *_arguments: Any, **_options: Any) -> NoReturn:
        """Raise NotImplementedError, with the remedy."""
        raise NotImplementedError(NO_MONITORED_BARRIER)

    def _start_coalescing(self, _device: Any = None) -> None:
        self._coalesced = []

    def _end_coalescing(self, _device: Any = None) -> CombinedWork:
        works, self._coalesced = self._coalesced or [], None
        return CombinedWork(works)

    # The group.

    @property
    def engine(self) -> GroupEngine:
        """The engine that runs the group's operations."""
        return self._engine

    def shutdown(self) -> None:
        """Release the engine; called by ``destroy_process_group``. Idempotent."""
        self._release()

    def abort(self) -> None:
        """Release all ranks of the group from any operation."""
        self._engine.engine.abort(f"process group {self._group_name} was aborted")

    def set_timeout(self, timeout: timedelta) -> None:
        """Set the timeout of later operations."""
        self._timeout = seconds_of(timeout)

    def size(self) -> int:
        """Return the number of ranks."""
        return self._member.size

    def rank(self) -> int:
        """Return this process's rank in the group."""
        return self._member.rank

    getSize, getRank = size, rank  # noqa: N815 - C++'s names

    def get_group_store(self) -> Any:
        """Return the group's store."""
        return self._store

    def name(self) -> str:
        """Return the backend's name."""
        return BACKEND

    getBackendName = _get_backend_name = name  # noqa: N815 - C++'s name

    @property
    def group_name(self) -> str:  # type: ignore[override]
        """Name by which functional collectives and DeviceMesh find the group."""
        return self._group_name

    @property
    def group_desc(self) -> str:
        """Description that the program or torch has set."""
        return self._group_desc

    def getGroupName(self) -> str:  # noqa: N802 - C++'s name
        """Return the group's name."""
        return self._group_name

    def getGroupDesc(self) -> str:  # noqa: N802 - C++'s name
        """Return the group's description."""
        return self._group_desc

    def setGroupName(self, name: str) -> None:  # noqa: N802 - C++'s name
        """Set the group's name."""
        self._group_name = name

    def setGroupDesc(self, desc: str) -> None:  # noqa: N802 - C++'s name
        """Set the group's description."""
        self._group_desc = desc

    _set_group_name, _set_group_desc = setGroupName, setGroupDesc

    @property
    def _device_types(self) -> list[torch.device]:
        """Devices of the group's tensors. None while torch creates the group: its recorder needs a backend in C++."""
        is_created = self in torch.distributed.distributed_c10d._world.pg_map  # noqa: SLF001 - torch has no public list
        return [torch.device("cpu")] if is_created else []

    def _get_backend(self, device: Any = None) -> HvdProcessGroup:  # type: ignore[override] # noqa: ARG002
        return self

    supports_splitting = supports_coalescing = supports_time_estimate = False

    def supports_tensor_alloc(self, _device: Any = None) -> bool:
        """Return False: tensors need no special memory."""
        return False

    def _has_hooks(self) -> bool:
        return False

    def _get_sequence_number_for_group(self) -> int:
        return self._engine.started

    def _set_sequence_number_for_group(self) -> None:
        """Do nothing: operations are numbered from 0."""

    def __deepcopy__(self, _memo: Any) -> HvdProcessGroup:
        return self


for _former, _name in FORMER_NAMES.items():
    setattr(HvdProcessGroup, _former, getattr(HvdProcessGroup, _name))


class _Options:
    """Options of a short form, with the attributes of torch's."""

    def __init__(self, **values: Any) -> None:
        self.__dict__.update(values)


def _options(options: Any, timeout: timedelta | None, positional: str = "", **defaults: Any) -> Any:
    """Return torch's options object; for a short form, options of the value that replaces it and the defaults."""
    if hasattr(options, "timeout"):
        return options
    if isinstance(options, timedelta):
        options, timeout = None, options
    values = {**defaults, "timeout": timeout}
    name = positional or next(iter(defaults), "")
    if options is not None and name:
        values[name] = options
    return _Options(**values)


def _release(waiters: Sequence[WaiterThread], engine: GroupEngine) -> None:
    for waiter in waiters:
        waiter.stop()
    engine.close()


def _list(tensors: Any) -> list[Tensor]:
    return [tensors] if isinstance(tensors, Tensor) else list(tensors)


def _only(operation: str, tensors: Any) -> Tensor:
    """Return the tensor of a list of one, or the tensor itself."""
    listed = _list(tensors)
    check_count(operation, len(listed), 1, "tensor")
    return listed[0]


def _inner(operation: str, lists: Any) -> list[Tensor]:
    """Return the list in a list of one, the list of a short form, or an empty list."""
    if not lists:
        return []
    if isinstance(lists[0], Tensor):
        return list(lists)
    check_count(operation, len(lists), 1, "list of tensors")
    return list(lists[0])
