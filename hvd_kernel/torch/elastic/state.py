"""``TorchState``: models, optimizers, samplers and the like as elastic state, each through a handler of its kind."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from hvd_kernel.elastic import ObjectState
from hvd_kernel.elastic.state import Snapshot
from hvd_kernel.torch.elastic.handlers import (
    GeneratorStateHandler,
    GradScalerStateHandler,
    LRSchedulerStateHandler,
    ModelStateHandler,
    OptimizerStateHandler,
    SamplerStateHandler,
    StateHandler,
)
from hvd_kernel.torch.elastic.sampler import ElasticSampler

__all__ = [
    "GeneratorStateHandler",
    "GradScalerStateHandler",
    "LRSchedulerStateHandler",
    "ModelStateHandler",
    "OptimizerStateHandler",
    "SamplerStateHandler",
    "StateHandler",
    "TorchState",
    "get_handler_registry",
    "set_handler_registry",
]

_handler_registry: list[tuple[type, type[StateHandler]]] = [
    (torch.nn.Module, ModelStateHandler),
    (torch.optim.Optimizer, OptimizerStateHandler),
    (torch.optim.lr_scheduler.LRScheduler, LRSchedulerStateHandler),
    (torch.amp.GradScaler, GradScalerStateHandler),
    (ElasticSampler, SamplerStateHandler),
    (torch.Generator, GeneratorStateHandler),
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

    Every keyword becomes an attribute. Models, optimizers, schedulers, scalers, ElasticSamplers and random generators
    (``generator=torch.default_generator``) are kept by their handlers, all else as plain Python values.

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
        """Take the values of rank ``root``, and keep them. Collective."""
        with self._all_or_nothing():
            for handler in self._handlers.values():
                handler.root = self.root
                handler.sync()
            super().sync()

    def reset(self) -> None:
        """Deal the remaining samples out to the ranks that there are now."""
        for handler in self._handlers.values():
            if isinstance(handler.value, ElasticSampler):
                handler.value.reset()

    def agree(self) -> None:
        """Let all ranks know what each has processed. Collective."""
        samplers = [one for one in self._handlers.values() if isinstance(one, SamplerStateHandler)]
        for sampler in samplers:
            sampler.agree()
        if not samplers:
            super().agree()

    def keep_step(self) -> None:
        """Keep what a step that fails could change."""
        for handler in self._handlers.values():
            handler.keep_step()
        super().keep_step()

    def undo_step(self) -> None:
        """Go back to the last step: parameters and the optimizer's state stay as they are."""
        for handler in self._handlers.values():
            handler.undo_step()
        super().undo_step()

    def snapshot(self) -> Snapshot:
        """Return what the last commit has kept: parameters and the optimizer's state are the same on all ranks."""
        kept = {name: handler.stored() for name, handler in self._handlers.items()}
        own = {name: own for name, (_, own) in kept.items()}
        return Snapshot({name: alike for name, (alike, _) in kept.items()}, {"handlers": own, **super().snapshot().own})

    def load_snapshot(self, snapshot: Snapshot, number: int) -> None:
        """Take what was stored.

        Raises
        ------
        ValueError
            It is not of this state's models, optimizers ...
        """
        stored = snapshot.own.get("handlers", {})
        if stored.keys() != self._handlers.keys():
            raise ValueError(
                f"The checkpoint has {sorted(stored)}, and this state {sorted(self._handlers)}: give it the same ones."
            )
        for name, handler in self._handlers.items():
            handler.load_stored(snapshot.alike[name], stored[name])
        super().load_snapshot(snapshot, number)

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
