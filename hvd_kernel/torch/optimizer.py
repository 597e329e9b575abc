"""``DistributedOptimizer``: a torch optimizer whose gradients, or Adasum steps, are reduced over all ranks."""
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
from hvd_kernel.core.ops import Adasum, Average, Sum, broadcast_object, synchronize
from hvd_kernel.core.process_sets import ProcessSet, check, global_process_set
from hvd_kernel.torch import async_ops
from hvd_kernel.torch.buckets import GradientHomes
from hvd_kernel.torch.compression import Compression, Compressor
from hvd_kernel.torch.mpi_ops import allreduce
from hvd_kernel.torch.reducer import AGREED, Reducer
from hvd_kernel.torch.slots import REDUCED, ReducerSettings, Slot
from hvd_kernel.torch.wrapping import (
    Groups,
    Named,
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
    """Mixin that reduces gradients."""

    gradient_predivide_factor: float
    _synchronized: bool
    _should_synchronize: bool

    def synchronize(self) -> None:
        """Reduce the gradients that backward did not: those that no graph reached, or of fewer backward passes."""
        if self._reduces:
            self._reducer.synchronize()
        self._synchronized = True

    @contextmanager
    def skip_synchronize(self) -> Iterator[None]:
        """Return a context in which ``step`` does not synchronize: for use after ``synchronize``."""
        self._should_synchronize = False
        try:
            yield
        finally:
            self._should_synchronize = True

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Synchronize, and take the wrapped optimizer's step.

        The gradients of a closure are reduced each time the wrapped optimizer calls it.
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
        if isinstance(self, torch.optim.LBFGS) and self._reduces:  # the loss decides on its next move, on all ranks
            return allreduce(torch.as_tensor(loss).detach(), name="loss", op=self.op, process_set=self.process_set)
        return loss

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clear the gradients and the count of backward passes; an error while gradients are being reduced."""
        super().zero_grad(set_to_none)
        self._synchronized = False  # also ends a step that was skipped because a GradScaler found an overflow

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a state, and discard gradients that are being reduced."""
        super().load_state_dict(state_dict)
        self._synchronized, self._should_synchronize = False, True


NO_SKIPPING = "Skipping synchronization is not supported when using Adasum optimizer."
NO_BUCKETS = "gradients_in_buckets=True is not possible: Adasum reduces steps, not gradients."


class AdasumMixin(OptimizerMixin):
    """Mixin with which every rank takes a step by its own gradients, and Adasum combines the steps.

    Adasum adds orthogonal components and averages parallel ones, so ranks take large steps where they agree. Horovod
    steps parameter by parameter in the middle of backward; here it is one step at the end, so that clipping, step hooks
    and optimizers that use all parameters work, and parameters do not change during backward.

    Terms.
      start  a parameter's value before the step
      move   the change of the parameter by the rank's own step, the operand of Adasum
    """

    def synchronize(self) -> None:
        """Do nothing: the moves exist only after the step."""

    def skip_synchronize(self) -> None:
        """Raise an error, as the step itself is synchronized.

        Raises
        ------
        AssertionError
            Always.
        """
        raise AssertionError(NO_SKIPPING)

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Take the wrapped optimizer's step, and replace it by the combination of all ranks' steps.

        After a failure the parameters have their values from before the step.
        """
        self._count_step()
        starts = [(param, param.detach().clone()) for param in self._trained()]
        try:
            loss = super().step(closure)
            self._combine(starts)
        except BaseException:
            with torch.no_grad():
                for param, start in starts:
                    param.copy_(start)
            raise
        finally:
            self._reducer.reset()
        return loss

    step.hooked = True  # type: ignore[attr-defined] # the wrapped class's step runs torch's step hooks already

    def _trained(self) -> list[Tensor]:
        params = (param for group in self.param_groups for param in group["params"] if param.requires_grad)
        return list(dict.fromkeys(params))

    @torch.no_grad()
    def _combine(self, starts: list[tuple[Tensor, Tensor]]) -> None:
        compression, process_set = self._reducer.plan.compression, self.process_set
        moves = [compression.compress(param - start) for param, start in starts]
        handles = [
            async_ops.allreduce_(move, self._parameter_names[param], Adasum, (1.0, 1.0), process_set)
            for (param, _), (move, _) in zip(starts, moves, strict=True)
        ]
        for handle in handles:
            synchronize(handle)
        for (param, start), (move, ctx) in zip(starts, moves, strict=True):
            param.copy_(start.add_(compression.decompress(move, ctx)))


class _PassCounter(Reducer):
    """Counts backward passes, and does not reduce gradients."""

    def start(self, slot: Slot) -> None:
        """Mark the gradient as complete."""
        slot.phase, self._round = REDUCED, AGREED
        slot.watch()

    def averages(self) -> bool:
        """Return True, as nothing is reduced."""
        return True


def _distributed_adasum(optimizer: torch.optim.Optimizer, named: Named, plan: ReducerSettings, passes: int) -> Any:
    homes = GradientHomes(plan.process_set, plan.compression, requested=False)
    counter = _PassCounter(named, plan, passes, homes)
    counter.hook()
    return derived(
        AdasumMixin, optimizer, named, _reducer=counter, _reduces=True, op=Adasum, process_set=plan.process_set
    )


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
    """Wrap an optimizer: return an instance of a subclass of its class, with the same class name.

    Gradients are reduced while backward runs, and are all reduced when it returns. The result shares parameters,
    options and state with ``optimizer``, which must not be used afterwards.

    Parameters
    ----------
    optimizer
        The optimizer to wrap.
    named_parameters
        Names by which the ranks match gradients, usually ``model.named_parameters()``; positions by default.
    compression
        Type in which gradients are sent: ``Compression.none``, ``fp16`` or ``bf16``.
    backward_passes_per_step
        Number of backward passes whose gradients are summed locally before they are reduced once.
    op
        ``Average`` or ``Sum`` of the gradients; ``Adasum`` of the steps that each rank takes with its own, see
        https://horovod.readthedocs.io/en/stable/adasum_user_guide_include.html.
    gradient_predivide_factor
        Average only: divide by the factor before the sum and by size / factor after.
    num_groups, groups
        Reduce gradients in that many groups, or in these groups, each as one operation; ``groups`` is the newer form.
    sparse_as_dense
        Reduce sparse gradients as dense tensors.
    process_set
        The ranks that take part; on other ranks the result is an ordinary optimizer.
    gradients_in_buckets
        Keep gradients, after the first step, in memory that all ranks of the host reduce in place, without a copy; the
        values are bitwise the same. A gradient to which the program holds a reference, or that is part of a larger
        tensor, is not moved. None: if it is possible (one host, no compression). True: insist.

    Raises
    ------
    ValueError
        An argument is invalid; the message has the reason.

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
    ``step``, in the same order of calls as with DistributedDataParallel. ``scaler.step(optimizer)`` of a ``GradScaler``
    takes or skips the step equally on all ranks. Every rank must take part in the end of each backward pass, or be in
    ``step``.

    Two kinds of gradients are reduced by ``synchronize``, which ``step`` calls: those of fewer backward passes than
    ``backward_passes_per_step``, and zeros for parameters that no rank's graph reached. To clip the former, call
    ``synchronize``, and then ``step`` within ``skip_synchronize``. With Adasum gradients are not reduced.
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
            raise ValueError(NO_BUCKETS)
        plan = ReducerSettings(Sum, (1.0, 1.0), compression, sparse_as_dense, process_set)
        return _distributed_adasum(optimizer, named, plan, backward_passes_per_step)
    scales = (1.0 / gradient_predivide_factor, gradient_predivide_factor)
    plan = ReducerSettings(op, scales, compression, sparse_as_dense, process_set)
    homes = GradientHomes(process_set, compression, requested=gradients_in_buckets)
    reducer = Reducer(named, plan, backward_passes_per_step, homes)
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


def _members(groups: Groups, reducer: Reducer) -> Sequence[Sequence[Tensor]]:
    """Return the members of each group; a number splits the parameters, in rank 0's order, into nearly equal runs."""
    if not isinstance(groups, int):
        return groups
    by_name = {slot.name: slot.param for slot in reducer.slots}
    process_set = reducer.plan.process_set
    first = (process_set.ranks or [0])[0]
    order = broadcast_object(list(by_name), first, "DistributedOptimizer.groups", process_set)
    params = [by_name[name] for name in order]
    ends = [len(params) * i // groups for i in range(groups + 1)]
    return [params[start:end] for start, end in pairwise(ends)]
