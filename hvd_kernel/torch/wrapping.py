"""Wrapping of optimizers: checks of the arguments, creation of the subclass, and the base of both kinds of mixins."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, SupportsIndex

import torch
from torch import Tensor

from hvd_kernel.core import metrics
from hvd_kernel.core.process_sets import ProcessSet
from hvd_kernel.torch import step_digests
from hvd_kernel.torch.reducer import Reducer
from hvd_kernel.torch.samples import SampleMeter, meter_of_wrapped

Named = list[tuple[str, Tensor]]
Groups = int | list[list[Tensor]]

_MODULE = "hvd_kernel.torch.optimizer"  # of every created class, as that of DistributedOptimizer


class OptimizerMixin(torch.optim.Optimizer):
    """Base of the mixins of distributed optimizers; not instantiated directly."""

    process_set: ProcessSet
    counts_steps = True  # for step_digests, whose hook sees the plain step inside
    op: int
    _reducer: Reducer
    _reduces: bool
    _parameter_names: dict[Tensor, str]
    _meter: SampleMeter
    _wrapped: torch.optim.Optimizer

    @property
    def backward_passes_per_step(self) -> int:
        """Number of backward passes whose gradients are summed before a reduction."""
        return self._reducer.passes

    @property
    def has_gradients(self) -> bool:
        """Whether there are gradients that no step has used."""
        return self._reducer.busy()

    def set_backward_passes_per_step(self, passes: int) -> None:
        """Set the number of backward passes, between two steps."""
        check_passes(passes)
        self._reducer.abandon()
        self._reducer.set_passes(passes)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clear the gradients and the count of backward passes; an error while gradients are being reduced."""
        if self._reduces:
            self._reducer.discard()
        super().zero_grad(set_to_none)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a state, and discard gradients that are being reduced."""
        self._reducer.abandon()
        with same_groups(self):
            super().load_state_dict(state_dict)
        self._wrapped.state = self.state

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add parameters, on all ranks equally."""
        super().add_param_group(param_group)
        number = len(self.param_groups) - 1
        params = dict.fromkeys(self.param_groups[number]["params"])
        added = [(unnamed(number, i), param) for i, param in enumerate(params)]
        self._parameter_names.update((param, name) for name, param in added)
        self._reducer.add(added)

    def plain_and_arguments(self) -> tuple[type[torch.optim.Optimizer], dict[str, Any], dict[str, Any]]:
        """Return the plain optimizer's class and state, and the arguments with which ``DistributedOptimizer`` wraps it.

        Raises
        ------
        TypeError
            The optimizer has groups, which all ranks must create together.
        """
        reducer = self._reducer
        if any(not group.bucket for group in reducer.groups):
            raise TypeError("a DistributedOptimizer with groups has to be made on all ranks together: wrap it again")
        arguments: dict[str, Any] = {
            "named_parameters": [(name, param) for param, name in self._parameter_names.items()],
            "compression": reducer.plan.compression,
            "backward_passes_per_step": reducer.passes,
            "op": self.op,
            "gradient_predivide_factor": getattr(self, "gradient_predivide_factor", 1.0),
            "sparse_as_dense": reducer.plan.sparse_as_dense,
            "process_set": self.process_set,
        }
        return type(self._wrapped), self.__getstate__(), arguments

    def __reduce_ex__(self, protocol: SupportsIndex) -> tuple[Any, ...]:
        """Copy and pickle as the plain optimizer, since hooks and ranks belong to this process."""
        base = type(self._wrapped)
        warnings.warn(
            f"A copy of a DistributedOptimizer is a plain {base.__name__}, which reduces nothing: wrap it to train.",
            stacklevel=3,
        )
        return _new, (base,), self.__getstate__()

    def _count_step(self) -> None:
        self._wrapped._opt_called = True  # type: ignore[attr-defined] # noqa: SLF001 - read by schedulers of the plain optimizer
        metrics.step(self._meter.pop())
        step_digests.stepped(self, reduced=self.process_set.process_set_id == 0)


@contextmanager
def same_groups(optimizer: torch.optim.Optimizer) -> Iterator[None]:
    """Keep the list and dicts of an optimizer's groups while a state is loaded, which would replace them.

    A scheduler may refer to them through the plain optimizer.
    """
    groups = optimizer.param_groups
    yield
    if optimizer.param_groups is not groups:
        for group, loaded in zip(groups, optimizer.param_groups, strict=True):
            group.clear()
            group.update(loaded)
        optimizer.param_groups = groups


def _new(base: type[torch.optim.Optimizer]) -> torch.optim.Optimizer:
    """Return an uninitialized optimizer, whose state pickle sets."""
    return base.__new__(base)


def derived(mixin: type[OptimizerMixin], optimizer: torch.optim.Optimizer, named: Named, **attributes: Any) -> Any:
    """Create an instance of a new subclass of the optimizer's class that shares the optimizer's attributes."""
    base = type(optimizer)
    cls: Any = type(base.__name__, (mixin, base), {"__module__": _MODULE, "__doc__": base.__doc__})
    instance = cls.__new__(cls)
    shared = {name: value for name, value in vars(optimizer).items() if name != "step"}  # "step": a scheduler's wrapper
    vars(instance).update(
        shared,
        _parameter_names={param: name for name, param in named},
        _meter=meter_of_wrapped(param for _, param in named),
        _wrapped=optimizer,
        **attributes,
    )
    return instance


def unnamed(group: int, index: int) -> str:
    """Return the name of a parameter without a name of the user: the same on all ranks."""
    return f"allreduce.noname.{group}.{index}"


def checked_names(optimizer: torch.optim.Optimizer, named_parameters: Iterable[tuple[str, Tensor]] | None) -> Named:
    """Return pairs of name and parameter for all optimized parameters.

    Raises
    ------
    ValueError
        ``named_parameters`` does not contain pairs, or names are not unique or missing; Horovod's messages.
    """
    groups = [group["params"] for group in optimizer.param_groups]
    if named_parameters is None:
        return _once((unnamed(i, j), p) for i, params in enumerate(groups) for j, p in enumerate(params))
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
    with_name = {id(p) for _, p in named}
    without = [str(id(p)) for p in _flat(groups) if id(p) not in with_name]
    if without:
        raise ValueError(
            "named_parameters was specified, but one or more model parameters were not named. "
            f"Python object ids: {', '.join(without)}"
        )
    optimized = {id(p) for p in _flat(groups)}
    return _once((name, p) for name, p in named if id(p) in optimized)


def _once(named: Iterable[tuple[str, Tensor]]) -> Named:
    """Return each parameter with its first name; a parameter that modules share has several."""
    first: dict[int, tuple[str, Tensor]] = {}
    for name, param in named:
        first.setdefault(id(param), (name, param))
    return list(first.values())


def check_passes(passes: int) -> None:
    """Check the number of backward passes."""
    if passes <= 0:
        raise ValueError("backward_passes_per_step must be > 0")


def checked_groups(groups: Groups | None, num_groups: int) -> Groups | None:
    """Return the requested groups, of the newer or the older argument.

    Raises
    ------
    ValueError
        The value is neither a positive number nor lists of distinct tensors; Horovod's messages.
    """
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


def _flat(groups: Iterable[Iterable[Tensor]]) -> list[Tensor]:
    return [param for params in groups for param in params]
