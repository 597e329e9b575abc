"""``TorchState``: models, optimizers, schedulers and samplers as elastic state, each through a handler of its kind.

Words.
  handler   knows how to save, restore and sync one value; found by the value's type in a table that may be extended
  snapshot  a copy of a value's ``state_dict``
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from hvd_kernel.core.ops import allgather_object, broadcast_object
from hvd_kernel.elastic import ObjectState
from hvd_kernel.torch.elastic.sampler import ElasticSampler
from hvd_kernel.torch.functions import broadcast_optimizer_state, broadcast_parameters
from hvd_kernel.torch.training.wrapping import same_groups


class StateHandler:
    """Keeps a value that has ``state_dict`` and ``load_state_dict``."""

    def __init__(self, value: Any) -> None:
        self.value = value
        self._snapshot = self._copied()

    def save(self) -> None:
        """Keep the value's state of now."""
        self._snapshot = self._copied()

    def restore(self) -> None:
        """Go back to the state that was kept."""
        self.value.load_state_dict(copy.deepcopy(self._snapshot))  # torch may keep the tensors it is given

    def sync(self) -> None:
        """Take rank 0's state, and keep it."""
        self.value.load_state_dict(broadcast_object(self.value.state_dict(), name="elastic.state"))
        self._snapshot = self._copied()

    def set_value(self, value: Any) -> None:
        """Keep another value from now on."""
        self.value = value
        self._snapshot = self._copied()

    def _copied(self) -> Any:
        return copy.deepcopy(self.value.state_dict())


class ModelStateHandler(StateHandler):
    """A module: parameters and buffers. Gradients are not state: those of the step that failed are forgotten."""

    def restore(self) -> None:
        """Go back to the parameters and buffers that were kept."""
        super().restore()
        self.value.zero_grad(set_to_none=True)

    def sync(self) -> None:
        """Take rank 0's parameters and buffers, and keep them."""
        broadcast_parameters(self.value.state_dict(), root_rank=0)
        self._snapshot = self._copied()


class OptimizerStateHandler(StateHandler):
    """An optimizer, distributed or not."""

    def restore(self) -> None:
        """Go back to the state and options that were kept."""
        with same_groups(self.value):
            super().restore()
        self.value.zero_grad(set_to_none=True)

    def sync(self) -> None:
        """Take rank 0's state and options, and keep them."""
        broadcast_optimizer_state(self.value, root_rank=0)
        self._snapshot = self._copied()


class LRSchedulerStateHandler(StateHandler):
    """A learning rate scheduler; the rate itself belongs to its optimizer."""


class GradScalerStateHandler(StateHandler):
    """The loss scale of mixed precision."""


class SamplerStateHandler(StateHandler):
    """An ElasticSampler. Each rank records what it has processed; together they know it all."""

    def save(self) -> None:
        """Keep what all ranks have processed. Collective."""
        self._snapshot = self._merged(root_only=False)

    def sync(self) -> None:
        """Go on where rank 0 is, without what others have processed since the last commit. Collective."""
        self._snapshot = self._merged(root_only=True)
        self.value.load_state_dict(self._snapshot)

    def _merged(self, *, root_only: bool) -> dict[str, Any]:
        """Return rank 0's place with everybody's processed samples.

        A rank that went back may have gone to a later commit than rank 0: with ``root_only`` only what it has recorded
        since then counts, so that nothing is left out that rank 0 has yet to do.
        """
        mine = self.value.state_dict()
        if root_only:
            mine["since"] = mine["processed_indices"] - self._snapshot["processed_indices"]
        everyone = allgather_object(mine, name="elastic.sampler")
        merged: dict[str, Any] = everyone[0]
        others = [one for one in everyone[1:] if one["epoch"] == merged["epoch"]]
        for one in others:
            merged["processed_indices"] |= one["since" if root_only else "processed_indices"]
        merged.pop("since", None)
        return merged


_handler_registry: list[tuple[type, type[StateHandler]]] = [
    (torch.nn.Module, ModelStateHandler),
    (torch.optim.Optimizer, OptimizerStateHandler),
    (torch.optim.lr_scheduler.LRScheduler, LRSchedulerStateHandler),
    (torch.amp.GradScaler, GradScalerStateHandler),
    (ElasticSampler, SamplerStateHandler),
]


def get_handler_registry() -> list[tuple[type, type[StateHandler]]]:
    """Return the table of types and their handlers; the first that fits is taken."""
    return _handler_registry


def set_handler_registry(registry: list[tuple[type, type[StateHandler]]]) -> None:
    """Use another table, for states that are made from now on."""
    global _handler_registry  # noqa: PLW0603 - Horovod's interface
    _handler_registry = registry


class TorchState(ObjectState):
    """The state of a training: ``TorchState(model=model, optimizer=optimizer, sampler=sampler, epoch=0, batch=0)``.

    Every keyword becomes an attribute. Models, optimizers, schedulers, scalers and ElasticSamplers are kept by their
    handlers, all else as plain Python values.

    Parameters
    ----------
    model, optimizer
        A ``torch.nn.Module`` and its optimizer, distributed or not.
    **kwargs
        More to keep, by name.

    Raises
    ------
    TypeError
        A value cannot be copied; from ``commit`` too.

    Examples
    --------
    >>> model = torch.nn.Linear(2, 1)
    >>> state = hvd.elastic.TorchState(model=model, epoch=0)
    >>> before = model.weight.clone()
    >>> model.weight.data.add_(1.0).shape
    torch.Size([1, 2])
    >>> state.restore()
    >>> torch.equal(model.weight, before)
    True
    """

    _handlers: dict[str, StateHandler]

    def __init__(self, model: Any = None, optimizer: Any = None, **kwargs: Any) -> None:
        self._handlers = {}
        given = {"model": model, "optimizer": optimizer, **kwargs}
        handlers = {name: _handler(value) for name, value in given.items()}
        super().__init__(**{name: value for name, value in given.items() if handlers[name] is None})
        for name, handler in handlers.items():
            if handler is not None:
                setattr(self, name, handler.value)
                self._handlers[name] = handler

    def save(self) -> None:
        """Keep everything as it is now. Collective where there is a sampler."""
        with self._all_or_nothing():
            for handler in self._handlers.values():
                handler.save()
            super().save()

    def restore(self) -> None:
        """Go back to what was kept."""
        for handler in self._handlers.values():
            handler.restore()
        super().restore()

    def sync(self) -> None:
        """Take rank 0's values, and keep them. Collective."""
        with self._all_or_nothing():
            for handler in self._handlers.values():
                handler.sync()
            super().sync()

    def reset(self) -> None:
        """Deal the remaining samples out to the ranks that there are now."""
        for handler in self._handlers.values():
            if isinstance(handler.value, ElasticSampler):
                handler.value.reset()

    def __setattr__(self, name: str, value: Any) -> None:
        if name in self.__dict__.get("_handlers", {}):
            self._handlers[name].set_value(value)
        elif name in self.__dict__.get("_saved_state", {}):
            self._begin_to_handle(name, value)
        super().__setattr__(name, value)

    @contextmanager
    def _all_or_nothing(self) -> Iterator[None]:
        """Keep every handler's earlier snapshot when one of them fails: values of two commits do not fit together."""
        before = [(handler, dict(vars(handler))) for handler in self._handlers.values()]
        try:
            yield
        except BaseException:
            for handler, attributes in before:
                vars(handler).update(attributes)
            raise

    def _begin_to_handle(self, name: str, value: Any) -> None:
        """Give a plain name a handler when it gets a value that needs one: ``state.model = model``."""
        handler = _handler(value)
        if handler is not None:
            del self._saved_state[name]
            self._handlers[name] = handler


def _handler(value: Any) -> StateHandler | None:
    return next((handler(value) for kind, handler in _handler_registry if isinstance(value, kind)), None)
