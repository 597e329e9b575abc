"""``TorchState``: models, optimizers, samplers and other objects as elastic state, each with a handler.

Terms.
  handler   saves, restores and syncs a value; selected by the value's type from a table that can be extended
  snapshot  a copy of a value's ``state_dict``
  step      a step that a StepGuard votes on: saved in addition to the snapshot, without what only the optimizer changes
"""

from __future__ import annotations

import copy
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from hvd_kernel.core.ops import allgather, allgather_object, broadcast_object
from hvd_kernel.elastic import ObjectState
from hvd_kernel.elastic.checkpoint.values import ITEM_BYTES, KINDS, Kind, NotStorable, Tensor
from hvd_kernel.elastic.state import Snapshot
from hvd_kernel.protocol.distributed_tensors import Path, is_distributed, replaced
from hvd_kernel.torch.elastic.sampler import ElasticSampler
from hvd_kernel.torch.functions import broadcast_optimizer_state, broadcast_parameters, not_broadcast
from hvd_kernel.torch.wrapping import same_groups

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


class StateHandler:
    """Handler of a value that has ``state_dict`` and ``load_state_dict``."""

    root = 0
    """The rank whose state ``sync`` sends."""

    _step: Any = None

    def __init__(self, value: Any) -> None:
        self.value = value
        self._snapshot = self._copied()

    def save(self) -> None:
        """Save the value's current state."""
        self._snapshot = self._copied()

    def restore(self) -> None:
        """Restore the saved state."""
        self._load(copy.deepcopy(self._snapshot))  # torch may keep references to the tensors

    def sync(self) -> None:
        """Receive the root's state, and save it."""
        self._load(broadcast_object(self._state(), self.root, name="elastic.state"))
        self._snapshot = self._copied()

    def set_value(self, value: Any) -> None:
        """Handle another value, and save its state."""
        self.value = value
        self._snapshot = self._copied()

    def agree(self) -> None:
        """Exchange state that differs between ranks. Collective, if there is such state."""

    def keep_step(self) -> None:
        """Save the state that a failed step could change."""
        self._step = self._copied()

    def undo_step(self) -> None:
        """Restore the state of ``keep_step``."""
        self._load(copy.deepcopy(self._step))

    def stored(self) -> tuple[Any, Any]:
        """Return the saved state for a checkpoint: the part that is equal on all ranks, and rank 0's part."""
        return None, self._snapshot

    def load_stored(self, alike: Any, own: Any) -> None:
        """Load and save the two parts of ``stored``."""
        self._snapshot = own if alike is None else alike
        self.restore()

    def _state(self) -> Any:
        return self.value.state_dict()

    def _load(self, state: Any) -> None:
        self.value.load_state_dict(state)

    def _copied(self) -> Any:
        state = self._state()
        replaced(state, is_distributed, _refuse)
        return copy.deepcopy(state)


def _refuse(tensor: Any, path: Path) -> None:
    raise TypeError(not_broadcast(".".join(path), tensor))


class ModelStateHandler(StateHandler):
    """Handler of a module: parameters and buffers. Gradients are not state: those of a failed step are discarded."""

    def restore(self) -> None:
        """Restore the saved parameters and buffers."""
        super().restore()
        self.value.zero_grad(set_to_none=True)

    def sync(self) -> None:
        """Receive the root's parameters and buffers, and save them."""
        broadcast_parameters(self.value.state_dict(), root_rank=self.root)
        self._snapshot = self._copied()

    def stored(self) -> tuple[Any, Any]:
        """Return the parameters, and the buffers with the other entries of the ``state_dict``."""
        names = {name for name, _ in self.value.named_parameters(remove_duplicate=False)}
        alike = {name: value for name, value in self._snapshot.items() if name in names}
        others = {name: value for name, value in self._snapshot.items() if name not in names}
        return alike, {"others": others, "metadata": dict(getattr(self._snapshot, "_metadata", {}))}

    def load_stored(self, alike: Any, own: Any) -> None:
        """Load and save parameters and buffers."""
        state = OrderedDict({**alike, **own["others"]})
        state._metadata = own["metadata"]  # type: ignore[attr-defined] # noqa: SLF001 - of torch: versions of modules
        super().load_stored(state, None)

    def keep_step(self) -> None:
        """Save the buffers, which a forward pass changes; only the optimizer changes parameters."""
        self._step = {name: buffer.clone() for name, buffer in self.value.named_buffers()}

    def undo_step(self) -> None:
        """Restore the saved buffers, and discard gradients."""
        with torch.no_grad():
            for name, buffer in self.value.named_buffers():
                buffer.copy_(self._step.get(name, buffer))
        self.value.zero_grad(set_to_none=True)


class OptimizerStateHandler(StateHandler):
    """Handler of an optimizer, distributed or not."""

    def restore(self) -> None:
        """Restore the saved state and options."""
        with same_groups(self.value):
            super().restore()
        self.value.zero_grad(set_to_none=True)

    def sync(self) -> None:
        """Receive the root's state and options, and save them."""
        broadcast_optimizer_state(self.value, root_rank=self.root)
        self._snapshot = self._copied()

    def stored(self) -> tuple[Any, Any]:
        """Return the state, which is equal on all ranks."""
        return self._snapshot, None

    def keep_step(self) -> None:
        """Save nothing, as the state changes only with the parameters."""

    def undo_step(self) -> None:
        """Discard gradients."""
        self.value.zero_grad(set_to_none=True)


class LRSchedulerStateHandler(StateHandler):
    """Handler of a learning rate scheduler; the rate itself is state of the optimizer."""


class GradScalerStateHandler(StateHandler):
    """Handler of the loss scale of mixed precision."""


class GeneratorStateHandler(StateHandler):
    """Handler of a random generator, such as ``torch.default_generator``."""

    def _state(self) -> Any:
        return self.value.get_state()

    def _load(self, state: Any) -> None:
        self.value.set_state(state)


class SamplerStateHandler(StateHandler):
    """Handler of an ElasticSampler. Each rank records the samples that it has processed; the ranks exchange these."""

    def save(self) -> None:
        """Save the samples that all ranks have processed. Collective."""
        self.agree()
        self._snapshot = self.value.progress()

    def restore(self) -> None:
        """Restore the saved progress."""
        self.value.go_back(self._snapshot)

    def agree(self) -> None:
        """Exchange the samples that the ranks have processed. Collective."""
        self.value.update_agreed(allgather(self.value.recorded(), name="elastic.sampler"))

    def sync(self) -> None:
        """Continue from the root's progress, plus the samples that any rank has processed since. Collective."""
        states = allgather_object(self.value.agreed_and_since(), name="elastic.sampler")
        self.value.load_state_dict(self.value.merged(states, self.root))
        self._snapshot = self.value.progress()

    def stored(self) -> tuple[Any, Any]:
        """Return the samples that all ranks have processed."""
        return None, self.value.agreed(self._snapshot)

    def load_stored(self, alike: Any, own: Any) -> None:
        """Continue from stored progress, with the current ranks."""
        del alike
        self.value.load_state_dict(own)
        self._snapshot = self.value.progress()

    def keep_step(self) -> None:
        """Save the progress."""
        self._step = self.value.progress()

    def undo_step(self) -> None:
        """Restore the progress of the last step."""
        self.value.go_back(self._step)

    def _copied(self) -> Any:
        return self.value.progress()


_handler_registry: list[tuple[type, type[StateHandler]]] = [
    (torch.nn.Module, ModelStateHandler),
    (torch.optim.Optimizer, OptimizerStateHandler),
    (torch.optim.lr_scheduler.LRScheduler, LRSchedulerStateHandler),
    (torch.amp.GradScaler, GradScalerStateHandler),
    (ElasticSampler, SamplerStateHandler),
    (torch.Generator, GeneratorStateHandler),
]


def get_handler_registry() -> list[tuple[type, type[StateHandler]]]:
    """Return the table of types and handlers; the first matching entry is used."""
    return _handler_registry


def set_handler_registry(registry: list[tuple[type, type[StateHandler]]]) -> None:
    """Set the table for states that are created later."""
    global _handler_registry  # noqa: PLW0603 - Horovod's interface
    _handler_registry = registry


class TorchState(ObjectState):
    """State of a training: ``TorchState(model=model, optimizer=optimizer, sampler=sampler, epoch=0, batch=0)``.

    Every keyword becomes an attribute. Models, optimizers, schedulers, scalers, ElasticSamplers and random generators
    (``generator=torch.default_generator``) are saved by their handlers, other values as plain Python values.

    Parameters
    ----------
    model, optimizer
        A ``torch.nn.Module`` and its optimizer, distributed or not.
    **kwargs
        Further values, by name.

    Raises
    ------
    TypeError
        A value cannot be copied, or a model or optimizer has DTensors; also raised by ``commit``.

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
        values = {"model": model, "optimizer": optimizer, **kwargs}
        handlers = {name: _handler(value) for name, value in values.items()}
        super().__init__(**{name: value for name, value in values.items() if handlers[name] is None})
        for name, handler in handlers.items():
            if handler is not None:
                setattr(self, name, handler.value)
                self._handlers[name] = handler

    def save(self) -> None:
        """Save the current state. Collective if there is a sampler."""
        with self._all_or_nothing():
            for handler in self._handlers.values():
                handler.save()
            super().save()

    def restore(self) -> None:
        """Restore the saved state."""
        for handler in self._handlers.values():
            handler.restore()
        super().restore()

    def sync(self) -> None:
        """Receive the values of rank ``root``, and save them. Collective."""
        with self._all_or_nothing():
            for handler in self._handlers.values():
                handler.root = self.root
                handler.sync()
            super().sync()

    def reset(self) -> None:
        """Deal the remaining samples to the current ranks."""
        for handler in self._handlers.values():
            if isinstance(handler.value, ElasticSampler):
                handler.value.reset()

    def agree(self) -> None:
        """Exchange the samples that the ranks have processed. Collective."""
        samplers = [handler for handler in self._handlers.values() if isinstance(handler, SamplerStateHandler)]
        for sampler in samplers:
            sampler.agree()
        if not samplers:
            super().agree()

    def keep_step(self) -> None:
        """Save the state that a failed step could change."""
        for handler in self._handlers.values():
            handler.keep_step()
        super().keep_step()

    def undo_step(self) -> None:
        """Restore the state of the last step; parameters and the optimizer's state do not change."""
        for handler in self._handlers.values():
            handler.undo_step()
        super().undo_step()

    def snapshot(self) -> Snapshot:
        """Return the state of the last commit; parameters and the optimizer's state are equal on all ranks."""
        stored = {name: handler.stored() for name, handler in self._handlers.items()}
        alike = {name: shared for name, (shared, _) in stored.items()}
        rank_0 = {name: single for name, (_, single) in stored.items()}
        return Snapshot(alike, {"handlers": rank_0, **super().snapshot().of_rank_0})

    def load_snapshot(self, snapshot: Snapshot, number: int) -> None:
        """Load a stored state.

        Raises
        ------
        ValueError
            The stored state has other models, optimizers ... than this state.
        """
        stored = snapshot.of_rank_0.get("handlers", {})
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
        """Restore the earlier snapshots of all handlers if one of them fails, so that all belong to one commit."""
        before = [(handler, dict(vars(handler))) for handler in self._handlers.values()]
        try:
            yield
        except BaseException:
            for handler, attributes in before:
                vars(handler).update(attributes)
            raise

    def _begin_to_handle(self, name: str, value: Any) -> None:
        """Add a handler for a plain name that is assigned a value that needs one: ``state.model = model``."""
        handler = _handler(value)
        if handler is not None:
            del self._saved_state[name]
            self._handlers[name] = handler


def _handler(value: Any) -> StateHandler | None:
    return next((handler(value) for kind, handler in _handler_registry if isinstance(value, kind)), None)


# Tensors in checkpoints.

_DTYPES = {name: getattr(torch, name) for name in ITEM_BYTES if hasattr(torch, name)}
_NAMES = {dtype: name for name, dtype in _DTYPES.items()}


def to_tensor(value: torch.Tensor) -> Tensor:
    """Return a tensor for a checkpoint: bytes with an element type and a shape; of a CPU tensor without a copy.

    Raises
    ------
    NotStorable
        The tensor is sparse, quantized or of an element type that checkpoints do not support.
    """
    if value.layout != torch.strided or value.dtype not in _NAMES or value.is_meta:
        raise NotStorable(f"a checkpoint cannot hold a tensor of {value.dtype}, {value.layout}")
    flat = value.detach().cpu().contiguous().reshape(-1)
    return Tensor(_NAMES[value.dtype], tuple(value.shape), flat.view(torch.uint8).numpy().data)


def from_tensor(tensor: Tensor) -> torch.Tensor:
    """Return a new tensor of torch for a tensor of a checkpoint."""
    dtype = _DTYPES[tensor.dtype]
    if not tensor.data.nbytes:
        return torch.empty(tensor.shape, dtype=dtype)
    return torch.frombuffer(bytearray(tensor.data), dtype=dtype).reshape(tensor.shape)


KINDS["torch"] = Kind(torch.Tensor, to_tensor, from_tensor)
