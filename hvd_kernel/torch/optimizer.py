"""``DistributedOptimizer``: any torch optimizer whose gradients are averaged over all ranks; as in Horovod."""
# ruff: noqa: PLR0917 - Horovod's signatures

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from hvd_kernel.core import session
from hvd_kernel.core.ops import Adasum, Average, Sum, broadcast_object
from hvd_kernel.core.process_sets import ProcessSet, check, global_process_set
from hvd_kernel.torch.compression import Compression, Compressor
from hvd_kernel.torch.mpi_ops import allreduce
from hvd_kernel.torch.training.adasum_optimizer import AdasumMixin, distributed_adasum
from hvd_kernel.torch.training.buckets import are_wanted, why_not
from hvd_kernel.torch.training.reducer import Reducer
from hvd_kernel.torch.training.slots import Homes, ReducerSettings
from hvd_kernel.torch.training.wrapping import (
    Groups,
    OptimizerMixin,
    check_passes,
    checked_groups,
    checked_names,
    derived,
)

SYNCHRONIZED_TWICE = (
    "optimizer.step() called without optimizer.skip_synchronize() context after optimizer.synchronize(). "
    "This can cause training slowdown. You may want to consider using optimizer.skip_synchronize() context "
    "if you use optimizer.synchronize() in your code."
)


class DistributedMixin(OptimizerMixin):
    """An optimizer of reduced gradients."""

    gradient_predivide_factor: float
    _synchronized: bool
    _should_synchronize: bool

    def synchronize(self) -> None:
        """Reduce what backward passes have not: gradients that this rank's graph did not reach, or of fewer passes."""
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
        """Synchronize, and take the wrapped optimizer's step.

        What a closure computes is reduced each time the wrapped optimizer has called it.
        """
        if self._should_synchronize:
            if self._synchronized:
                warnings.warn(SYNCHRONIZED_TWICE, stacklevel=2)
            if closure is None:
                self.synchronize()
            else:
                closure = partial(self._reduced, closure)
        self._count_step()
        try:
            return super().step(closure)
        finally:
            self._synchronized = False
            if self._reduces and not self._should_synchronize:
                self._reducer.end_step()

    step.hooked = True  # type: ignore[attr-defined] # the wrapped class's step runs torch's step hooks already

    def _reduced(self, closure: Callable[[], Any]) -> Any:
        loss = closure()
        self.synchronize()
        if isinstance(self, torch.optim.LBFGS) and self._reduces:  # the loss decides on its next move: for all alike
            return allreduce(torch.as_tensor(loss).detach(), name="loss", op=self.op, process_set=self.process_set)
        return loss

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget the gradients, and with them what backward passes have counted; not while they are being reduced."""
        super().zero_grad(set_to_none)
        self._synchronized = False  # a step that was not taken (a GradScaler found an overflow) is over

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load, and forget gradients that were on their way."""
        super().load_state_dict(state_dict)
        self._synchronized, self._should_synchronize = False, True


_DistributedOptimizer = DistributedMixin  # Horovod's names of the two kinds, for isinstance and issubclass
_DistributedAdasumOptimizer = AdasumMixin


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

    Gradients are reduced while backward still runs, and are all reduced when it returns. The result shares parameters,
    options and state with the optimizer it was made from, which is not to be used any more.

    Parameters
    ----------
    optimizer
        The optimizer to make distributed.
    named_parameters
        Names by which the ranks match gradients, usually ``model.named_parameters()``; without, positions are used.
    compression
        What travels: ``Compression.none``, ``fp16`` or ``bf16``.
    backward_passes_per_step
        Gradients are summed locally over that many backward passes, then reduced once.
    op
        ``Average`` or ``Sum`` of the gradients; ``Adasum`` of the steps that each rank takes with its own, see
        https://horovod.readthedocs.io/en/stable/adasum_user_guide_include.html.
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
        values are the same to the bit. A gradient that the program keeps, or that is part of a larger tensor, stays
        where it is. None: where it is possible (one host, no compression). True: insist.

    Raises
    ------
    ValueError
        An argument cannot be used; the message says why.

    Examples
    --------
    >>> model = torch.nn.Linear(2, 1, bias=False)
    >>> model.weight.data.zero_().shape
    torch.Size([1, 2])
    >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    >>> optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    >>> model(torch.tensor([[1.0, 2.0]])).sum().backward()
    >>> optimizer.step()
    >>> model.weight.tolist()
    [[-0.5, -1.0]]

    Notes
    -----
    When ``backward`` returns, ``param.grad`` is reduced: it may be clipped, unscaled, checked or replaced before
    ``step``, in the order of calls that DistributedDataParallel has. ``scaler.step(optimizer)`` of a ``GradScaler``
    takes or skips the step on all ranks alike. Every rank takes part in the end of each backward pass, or is in
    ``step``.

    Two kinds of gradients are reduced by ``synchronize``, which ``step`` calls: those of fewer backward passes than
    ``backward_passes_per_step``, and zeros for parameters that no rank's graph reached. Call it yourself to clip the
    former, then ``step`` within ``skip_synchronize``. With Adasum gradients stay each rank's own.
    """
    named = checked_names(optimizer, named_parameters)
    groups = checked_groups(groups, num_groups)
    check_passes(backward_passes_per_step)
    if op not in {Average, Sum, Adasum}:
        raise ValueError(f"op={op} is not available: use Average, Sum or Adasum.")
    if gradient_predivide_factor != 1.0 and op != Average:
        raise ValueError("gradient_predivide_factor not supported with op != Average")
    if isinstance(optimizer, OptimizerMixin):
        raise ValueError(  # noqa: TRY004 - as the checks around it
            "This optimizer is a DistributedOptimizer already: wrap the plain one, once."
        )
    check(process_set)
    reduces = bool(process_set.included()) and (process_set.size() != 1 or session.setting("HOROVOD_ELASTIC") == "1")
    if op == Adasum and reduces:
        if gradients_in_buckets:
            raise ValueError("gradients_in_buckets=True is not possible: with Adasum steps travel, not gradients.")
        plan = ReducerSettings(Sum, (1.0, 1.0), compression, sparse_as_dense, process_set)
        return distributed_adasum(optimizer, named, plan, backward_passes_per_step)
    scales = (1.0 / gradient_predivide_factor, gradient_predivide_factor)
    plan = ReducerSettings(op, scales, compression, sparse_as_dense, process_set)
    reducer = Reducer(named, plan, backward_passes_per_step, _homes(gradients_in_buckets, process_set, compression))
    if groups is not None and reduces:
        reducer.group(_members(groups, reducer))
    if reduces:
        reducer.hook()
    return derived(
        DistributedMixin,
        optimizer,
        named,
        _reducer=reducer,
        _reduces=reduces,
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
    allowed = asked is not False
    return Homes(allowed and are_wanted(process_set, compression), allowed, insisted=bool(asked))


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
