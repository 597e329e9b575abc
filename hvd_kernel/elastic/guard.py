"""``StepGuard``: a vote before each optimizer step, so that a failure costs one step and nothing is rolled back.

Terms.
  vote   a collective that completes when all ranks have called it: each has its gradients, and no error
  whole  the state of values outside of a step: all of them are those after the same step

The first error ends communication, so all later collectives of the step raise immediately, and so does the vote: the
step is skipped. Parameters are still those of the previous step. If one rank has passed the vote and another has not,
the first is one step ahead, and the others load its values when they sync (``State.sync_from``): its step is valid,
since all its gradients had arrived.
"""

from __future__ import annotations

from types import TracebackType
from typing import Any

from hvd_kernel.elastic.state import State


class StepGuard:
    """Keep every step that all ranks complete: ``with guard: optimizer.step()``. A failure undoes only the last step.

    It replaces ``state.commit()`` after each step, and costs no copy of the model. The block contains the optimizer's
    step and its counters, and no other collective; record the processed samples before it. On entry the guard
    synchronizes ``state.optimizer``, if that is a distributed one, and lets all ranks vote; on exit it checks for
    changed hosts.
    Still call ``commit`` from time to time: a failure inside a step returns to the last commit, and a Checkpoint writes
    commits.

    Parameters
    ----------
    state
        The state that ``elastic.run`` is called with.

    Raises
    ------
    HorovodInternalError
        On entering: a rank has failed. ``elastic.run`` handles it.
    HostsUpdatedInterrupt
        On leaving: hosts have changed, on all ranks together. ``elastic.run`` handles it.

    Examples
    --------
    >>> model = torch.nn.Linear(2, 1)
    >>> optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1))
    >>> state = hvd.elastic.TorchState(model, optimizer, batch=0)
    >>> @hvd.elastic.run
    ... def train(state):
    ...     guard = hvd.elastic.StepGuard(state)
    ...     while state.batch < 3:
    ...         optimizer.zero_grad()
    ...         model(torch.ones(4, 2)).sum().backward()
    ...         with guard:
    ...             optimizer.step()
    ...             state.batch += 1
    ...     return state.batch
    >>> train(state)
    3
    """

    def __init__(self, state: State) -> None:
        self.state = state
        self._skipping: Any = None

    def __enter__(self) -> None:
        """Synchronize the optimizer, and vote. Collective."""
        optimizer = getattr(self.state, "optimizer", None)
        synchronize = getattr(optimizer, "synchronize", None)
        skip_synchronize = getattr(optimizer, "skip_synchronize", None)
        if synchronize is not None and skip_synchronize is not None:
            synchronize()
            self._skipping = skip_synchronize()
        self.state.begin_step()
        if self._skipping is not None:
            self._skipping.__enter__()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Keep the step, unless it has failed, and check for changed hosts. Collective."""
        skipping, self._skipping = self._skipping, None
        if skipping is not None:
            skipping.__exit__(kind, error, trace)
        if error is None:
            self.state.end_step()
            self.state.check_host_updates()
