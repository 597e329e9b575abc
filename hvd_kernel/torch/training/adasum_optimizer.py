"""``DistributedOptimizer(op=Adasum)``: every rank takes a step with its own gradients; the steps are combined.

Adasum adds what is orthogonal and averages what is parallel, so ranks take large steps together where they agree.
Horovod takes the step parameter by parameter in the middle of backward; here it is one step at the end, so that
clipping, step hooks and optimizers that look at all parameters work, and the parameters hold still during backward.

Terms.
  start  a parameter before the step
  move   what the rank's own step adds to it; what travels
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from hvd_kernel.core.ops import Adasum, synchronize
from hvd_kernel.torch import dispatch
from hvd_kernel.torch.training.reducer import Reducer
from hvd_kernel.torch.training.slots import Homes, ReducerSettings, Slot
from hvd_kernel.torch.training.wrapping import Named, OptimizerMixin, derived

NO_SKIPPING = "Skipping synchronization is not supported when using Adasum optimizer."
_PLAIN = (1.0, 1.0)


class AdasumMixin(OptimizerMixin):
    """An optimizer of combined steps."""

    def synchronize(self) -> None:
        """Do nothing: what travels exists only after the step."""

    def skip_synchronize(self) -> None:
        """Refuse.

        Raises
        ------
        AssertionError
            The step is what is synchronized.
        """
        raise AssertionError(NO_SKIPPING)

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Take the wrapped optimizer's step, and replace it by the combination of all ranks' steps.

        After a failure the parameters are what they were before.
        """
        self._count_step()
        starting = [(param, param.detach().clone()) for param in self._trained()]
        try:
            loss = super().step(closure)
            self._combine(starting)
        except BaseException:
            with torch.no_grad():
                for param, start in starting:
                    param.copy_(start)
            raise
        finally:
            self._reducer.rewind()
        return loss

    step.hooked = True  # type: ignore[attr-defined] # the wrapped class's step runs torch's step hooks already

    def _trained(self) -> list[Tensor]:
        params = (param for group in self.param_groups for param in group["params"] if param.requires_grad)
        return list(dict.fromkeys(params))

    @torch.no_grad()
    def _combine(self, starting: list[tuple[Tensor, Tensor]]) -> None:
        compression, process_set = self._reducer.plan.compression, self.process_set
        moves = [compression.compress(param - start) for param, start in starting]
        handles = [
            dispatch.allreduce_(move, self._parameter_names[param], Adasum, _PLAIN, process_set)
            for (param, _), (move, _) in zip(starting, moves, strict=True)
        ]
        for handle in handles:
            synchronize(handle)
        for (param, start), (move, ctx) in zip(starting, moves, strict=True):
            param.copy_(start.add_(compression.decompress(move, ctx)))


class _Passes(Reducer):
    """Counts backward passes; gradients stay here."""

    def start(self, slot: Slot) -> None:
        """Note that the gradient is complete."""
        slot.started = slot.finished = self._finished_some = True
        slot.watch()

    def averages(self) -> bool:
        """Return True: nothing is reduced."""
        return True


def distributed_adasum(optimizer: torch.optim.Optimizer, named: Named, plan: ReducerSettings, passes: int) -> Any:
    """Return the optimizer, made distributed. See ``DistributedOptimizer``."""
    counter = _Passes(named, plan, passes, Homes(wanted=False))
    counter.hook()
    return derived(
        AdasumMixin, optimizer, named, _reducer=counter, _reduces=True, op=Adasum, process_set=plan.process_set
    )
