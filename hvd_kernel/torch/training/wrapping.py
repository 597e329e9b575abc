"""A plain optimizer made distributed: what is checked, the class that is made, and what both kinds of it share."""

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
from hvd_kernel.torch.training import step_digests
from hvd_kernel.torch.training.reducer import Reducer
from hvd_kernel.torch.training.samples import SampleMeter

Named = list[tuple[str, Tensor]]
Groups = int | list[list[Tensor]]

_MODULE = "hvd_kernel.torch.optimizer"  # of every class that is made: where users find DistributedOptimizer


class OptimizerMixin(torch.optim.Optimizer):
    """What a distributed optimizer has beyond the one it was made from. Never instantiated by itself."""

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
        """Backward passes whose gradients are summed before they are used."""
        return self._reducer.passes

    @property
    def has_gradients(self) -> bool:
        """Whether a backward pass has brought gradients that no step has used."""
        return self._reducer.busy()

    def set_backward_passes_per_step(self, passes: int) -> None:
        """Change it, between two steps."""
        check_passes(passes)
        self._reducer.abandon()
        self._reducer.set_passes(passes)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget the gradients, and with them what backward passes have counted; not while they are being reduced."""
        if self._reduces:
            self._reducer.drop()
        super().zero_grad(set_to_none)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load, and forget gradients that were on their way."""
        self._reducer.abandon()
        with same_groups(self):
            super().load_state_dict(state_dict)
        self._wrapped.state = self.state

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Optimize more parameters, on all ranks alike."""
        super().add_param_group(param_group)
        number = len(self.param_groups) - 1
        params = dict.fromkeys(self.param_groups[number]["params"])
        added = [(unnamed(number, i), param) for i, param in enumerate(params)]
        self._parameter_names.update((param, name) for name, param in added)
        self._reducer.add(added)

    def apart(self) -> tuple[type[torch.optim.Optimizer], dict[str, Any], dict[str, Any]]:
        """Return the plain optimizer's class and state, and the arguments with which ``DistributedOptimizer`` wraps it.

        Raises
        ------
        TypeError
            Its gradients travel in groups, which all ranks have to make together.
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
        """Copy and pickle as the plain optimizer: hooks and ranks belong to this process."""
        base = type(self._wrapped)
        warnings.warn(
            f"A copy of a DistributedOptimizer is a plain {base.__name__}, which reduces nothing: wrap it to train.",
            stacklevel=3,
        )
        return _unmade, (base,), self.__getstate__()

    def _count_step(self) -> None:
        self._wrapped._opt_called = True  # type: ignore[attr-defined] # noqa: SLF001 - a scheduler made before looks there
        metrics.step(self._meter.take())
        step_digests.stepped(self, reduced=self.process_set.process_set_id == 0)


@contextmanager
def same_groups(optimizer: torch.optim.Optimizer) -> Iterator[None]:
    """Keep the very list and dicts of its groups while a state is loaded, which would put new ones in their place.

    A scheduler may hold them through the optimizer that was made distributed.
    """
    groups = optimizer.param_groups
    yield
    if optimizer.param_groups is not groups:
        for group, loaded in zip(groups, optimizer.param_groups, strict=True):
            group.clear()
            group.update(loaded)
        optimizer.param_groups = groups


def _unmade(base: type[torch.optim.Optimizer]) -> torch.optim.Optimizer:
    """Return an optimizer that its state makes whole."""
    return base.__new__(base)


def derived(mixin: type[OptimizerMixin], optimizer: torch.optim.Optimizer, named: Named, **attributes: Any) -> Any:
    """Build an instance of a new subclass of the optimizer's class that shares all the optimizer has."""
    base = type(optimizer)
    cls: Any = type(base.__name__, (mixin, base), {"__module__": _MODULE, "__doc__": base.__doc__})
    made = cls.__new__(cls)
    shared = {name: value for name, value in vars(optimizer).items() if name != "step"}  # "step": a scheduler's wrapper
    vars(made).update(
        shared,
        _parameter_names={param: name for name, param in named},
        _meter=SampleMeter(param for _, param in named),
        _wrapped=optimizer,
        **attributes,
    )
    return made


def unnamed(group: int, index: int) -> str:
    """Return the name of a parameter that the user gave none: the same on all ranks."""
    return f"allreduce.noname.{group}.{index}"


def checked_names(optimizer: torch.optim.Optimizer, named_parameters: Iterable[tuple[str, Tensor]] | None) -> Named:
    """Return name and parameter of everything that is optimized.

    Raises
    ------
    ValueError
        The names are not pairs, or not unique, or not there for every parameter; in Horovod's words.
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
    """Return each parameter with its first name: one that modules share has several."""
    first: dict[int, tuple[str, Tensor]] = {}
    for name, param in named:
        first.setdefault(id(param), (name, param))
    return list(first.values())


def check_passes(passes: int) -> None:
    """Refuse a number of backward passes that is none."""
    if passes <= 0:
        raise ValueError("backward_passes_per_step must be > 0")


def checked_groups(groups: Groups | None, num_groups: int) -> Groups | None:
    """Return what was asked for, of the newer and the older argument.

    Raises
    ------
    ValueError
        Neither a number above 0 nor lists of tensors that name each tensor once; in Horovod's words.
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
