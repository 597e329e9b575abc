"""``DistributedOptimizer``: any torch optimizer whose gradients are averaged over all ranks; as in Horovod."""
# ruff: noqa: PLR0917 - Horovod's signatures

from __future__ import annotations

import os
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from hvd_kernel import _session, metrics
from hvd_kernel.ops import Average, Sum, broadcast_object
from hvd_kernel.process_sets import ProcessSet, check, global_process_set
from hvd_kernel.torch.buckets import why_not
from hvd_kernel.torch.compression import Compression, Compressor
from hvd_kernel.torch.reducer import Homes, Plan, Reducer
from hvd_kernel.torch.samples import SampleMeter

Named = list[tuple[str, Tensor]]
Groups = int | list[list[Tensor]]

ZERO_GRAD_RACE = (
    "optimizer.zero_grad() was called after loss.backward() but before optimizer.step() or optimizer.synchronize(). "
    "This is prohibited as it can cause a race condition."
)
SYNCHRONIZED_TWICE = (
    "optimizer.step() called without optimizer.skip_synchronize() context after optimizer.synchronize(). "
    "This can cause training slowdown. You may want to consider using optimizer.skip_synchronize() context "
    "if you use optimizer.synchronize() in your code."
)


class DistributedMixin(torch.optim.Optimizer):
    """What a distributed optimizer has beyond the one it was made from. Never instantiated by itself."""

    process_set: ProcessSet
    op: int
    gradient_predivide_factor: float
    _reducer: Reducer
    _parameter_names: dict[Tensor, str]
    _meter: SampleMeter
    _wrapped: torch.optim.Optimizer
    _reduces: bool
    _synchronized: bool
    _should_synchronize: bool

    @property
    def backward_passes_per_step(self) -> int:
        """Backward passes whose gradients are summed before they are reduced."""
        return self._reducer.passes

    def set_backward_passes_per_step(self, passes: int) -> None:
        """Change it, between two steps."""
        _check_passes(passes)
        self._reducer.passes = passes
        self._reducer.rewind()

    def synchronize(self) -> None:
        """Wait until every gradient is reduced: then they may be looked at or clipped."""
        if self._reduces:
            self._reducer.synchronize()
        self._synchronized = True

    @contextmanager
    def skip_synchronize(self) -> Iterator[None]:
        """Within it ``step`` does not synchronize: for use after ``synchronize``."""
        self._should_synchronize = False
        try:
            yield
        finally:
            self._should_synchronize = True

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Synchronize, and take the wrapped optimizer's step."""
        if self._should_synchronize:
            if self._synchronized:
                warnings.warn(SYNCHRONIZED_TWICE, stacklevel=2)
            self.synchronize()
        self._synchronized = False
        self._wrapped._opt_called = True  # type: ignore[attr-defined] # noqa: SLF001 - a scheduler made before looks there
        metrics.step(self._meter.take())
        return super().step(closure)

    step.hooked = True  # type: ignore[attr-defined] # the wrapped class's step runs torch's step hooks already

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget the gradients; not between ``backward`` and ``step``, while they are on their way."""
        if self._reduces and self._reducer.busy():
            raise AssertionError(ZERO_GRAD_RACE)
        super().zero_grad(set_to_none)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load, and forget gradients that were on their way."""
        self._reducer.rewind()
        self._synchronized, self._should_synchronize = False, True
        super().load_state_dict(state_dict)


def DistributedOptimizer(  # noqa: N802 - Horovod's name
    optimizer: torch.optim.Optimizer,
    named_parameters: Iterable[tuple[str, Tensor]] | None = None,
    compression: type[Compressor] = Compression.none,
    backward_passes_per_step: int = 1,
    op: int = Average,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: Groups | None = None,
    sparse_as_dense: bool = False,
    process_set: ProcessSet = global_process_set,
    gradients_in_buckets: bool | None = None,
) -> Any:
    """Return the optimizer, made distributed: an instance of a subclass of its own class, with the same class name.

    Gradients are reduced while backward still runs; ``step`` waits for them. The result shares parameters, options and
    state with the optimizer it was made from, which is not to be used any more.

    Parameters
    ----------
    optimizer
        The optimizer to make distributed.
    named_parameters
        Names by which the ranks match gradients, usually ``model.named_parameters()``; without, positions are used.
    compression
        What travels: ``Compression.none`` or ``Compression.fp16``.
    backward_passes_per_step
        Gradients are summed locally over that many backward passes, then reduced once.
    op
        ``Average`` or ``Sum``.
    gradient_predivide_factor
        Average only: divide by the factor before the sum and by size / factor after.
    num_groups, groups
        Reduce gradients in that many groups, or in these groups, each as one operation; ``groups`` is the newer form.
    sparse_as_dense
        Sparse gradients travel as dense ones.
    process_set
        The ranks that take part; on the others this is an ordinary optimizer.
    gradients_in_buckets
        After the first step gradients live in memory that all ranks of the host reduce in place, without a copy; the
        values are the same to the bit. None: where it is possible (one host, no compression). True: insist.
    """
    named = _named(optimizer, named_parameters)
    groups = _checked_groups(groups, num_groups)
    _check_passes(backward_passes_per_step)
    if op not in {Average, Sum}:
        raise ValueError(f"op={op} is not available: use Average or Sum.")
    if gradient_predivide_factor != 1.0 and op != Average:
        raise ValueError("gradient_predivide_factor not supported with op != Average")
    if isinstance(optimizer, DistributedMixin):
        raise ValueError(  # noqa: TRY004 - as the checks around it
            "This optimizer is a DistributedOptimizer already: wrap the plain one, once."
        )
    check(process_set)
    reduces = bool(process_set.included()) and (process_set.size() != 1 or os.environ.get("HOROVOD_ELASTIC") == "1")
    scales = (1.0 / gradient_predivide_factor, gradient_predivide_factor)
    reducer = Reducer(
        [(name, param) for name, param in named if param.requires_grad],
        Plan(op, scales, compression, sparse_as_dense, process_set),
        backward_passes_per_step,
        _homes(gradients_in_buckets, process_set, compression),
    )
    if groups is not None and reduces:
        reducer.group(_members(groups, reducer))
    if reduces:
        reducer.hook()
    return _derived(
        optimizer,
        _reducer=reducer,
        _reduces=reduces,
        _parameter_names={param: name for name, param in named},
        _meter=SampleMeter(param for _, param in named),
        _wrapped=optimizer,
        _synchronized=False,
        _should_synchronize=True,
        op=op,
        gradient_predivide_factor=gradient_predivide_factor,
        process_set=process_set,
    )


def _homes(asked: bool | None, process_set: ProcessSet, compression: type[Compressor]) -> Homes:
    reason = why_not(process_set, compression)
    if asked and reason:
        raise ValueError(f"gradients_in_buckets=True is not possible: {reason}.")
    return Homes(asked is not False and not reason and _session.size() > 1, bool(asked))


def _derived(optimizer: torch.optim.Optimizer, **attributes: Any) -> Any:
    """Build an instance of a new subclass of the optimizer's class that shares all the optimizer has."""
    base = type(optimizer)
    cls: Any = type(base.__name__, (DistributedMixin, base), {"__module__": __name__, "__doc__": base.__doc__})
    derived = cls.__new__(cls)
    shared = {name: value for name, value in vars(optimizer).items() if name != "step"}  # "step": a scheduler's wrapper
    vars(derived).update(shared, **attributes)
    return derived


def _named(optimizer: torch.optim.Optimizer, named_parameters: Iterable[tuple[str, Tensor]] | None) -> Named:
    """Return name and parameter of everything that is optimized."""
    groups = [group["params"] for group in optimizer.param_groups]
    if named_parameters is None:
        return [(f"allreduce.noname.{i}.{j}", p) for i, params in enumerate(groups) for j, p in enumerate(params)]
    named: Named = list(named_parameters)
    if any(not isinstance(pair, tuple) for pair in named):
        raise ValueError(
            "named_parameters should be a sequence of tuples (name, parameter), "
            "usually produced by model.named_parameters()."
        )
    twice = [name for name, count in Counter(name for name, _ in named).items() if count > 1]
    if twice:
        raise ValueError(
            f"Parameter names in named_parameters must be unique. Found duplicates: {', '.join(map(str, twice))}"
        )
    unnamed = [str(id(p)) for p in _flat(groups) if id(p) not in {id(p) for _, p in named}]
    if unnamed:
        raise ValueError(
            "named_parameters was specified, but one or more model parameters were not named. "
            f"Python object ids: {', '.join(unnamed)}"
        )
    optimized = {id(p) for p in _flat(groups)}
    return [(name, p) for name, p in named if id(p) in optimized]


def _flat(groups: Iterable[Iterable[Tensor]]) -> list[Tensor]:
    return [param for params in groups for param in params]


def _check_passes(passes: int) -> None:
    if passes <= 0:
        raise ValueError("backward_passes_per_step must be > 0")


def _checked_groups(groups: Groups | None, num_groups: int) -> Groups | None:
    if num_groups != 0:
        warnings.warn(
            "Parameter `num_groups` has been replaced by `groups` and will be removed.",
            DeprecationWarning,
            stacklevel=3,
        )
        groups = num_groups if groups is None else groups
    if groups is None:
        return None
    if not isinstance(groups, list):
        if not isinstance(groups, int) or groups <= 0:
            raise ValueError("groups should be a non-negative integer or a list of list of torch.Tensor.")
        return groups
    members = _flat(groups)
    if any(not isinstance(member, Tensor) for member in members):
        raise ValueError("groups must consist of torch.Tensor.")
    if len({id(member) for member in members}) < len(members):
        raise ValueError("A parameter can only appear once in groups.")
    return groups


def _members(groups: Groups, reducer: Reducer) -> Sequence[Sequence[Tensor]]:
    """Return who travels with whom; a number splits the parameters, in rank 0's order, into nearly equal runs."""
    if not isinstance(groups, int):
        return groups
    by_name = {slot.name: slot.param for slot in reducer.slots}
    process_set = reducer.plan.process_set
    first = (process_set.ranks or [0])[0]
    order = broadcast_object(list(by_name), first, "DistributedOptimizer.groups", process_set)
    params = [by_name[name] for name in order]
    ends = [len(params) * i // groups for i in range(groups + 1)]
    return [params[start:end] for start, end in pairwise(ends)]
