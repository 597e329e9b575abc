"""Handlers of ``TorchState``: how a model, an optimizer, a sampler ... is saved, restored and synced.

Terms.
  handler   knows how to save, restore and sync one value; found by the value's type in a table that may be extended
  snapshot  a copy of a value's ``state_dict``
  step      a step that a StepGuard has voted for: kept beside the snapshot, without what only the optimizer changes
"""

from __future__ import annotations

import copy
from collections import OrderedDict
from typing import Any

import torch

from hvd_kernel.core.ops import allgather, allgather_object, broadcast_object
from hvd_kernel.torch.functions import broadcast_optimizer_state, broadcast_parameters
from hvd_kernel.torch.training.wrapping import same_groups


class StateHandler:
    """Keeps a value that has ``state_dict`` and ``load_state_dict``."""

    root = 0
    """The rank whose state ``sync`` takes."""

    _step: Any = None

    def __init__(self, value: Any) -> None:
        self.value = value
        self._snapshot = self._copied()

    def save(self) -> None:
        """Keep the value's state of now."""
        self._snapshot = self._copied()

    def restore(self) -> None:
        """Go back to the state that was kept."""
        self._load(copy.deepcopy(self._snapshot))  # torch may keep the tensors it is given

    def sync(self) -> None:
        """Take the root's state, and keep it."""
        self._load(broadcast_object(self._state(), self.root, name="elastic.state"))
        self._snapshot = self._copied()

    def set_value(self, value: Any) -> None:
        """Keep another value from now on."""
        self.value = value
        self._snapshot = self._copied()

    def agree(self) -> None:
        """Let all ranks know what only one of them knows. Collective, where there is such a thing."""

    def keep_step(self) -> None:
        """Keep what a step that fails could change."""
        self._step = self._copied()

    def undo_step(self) -> None:
        """Go back to what ``keep_step`` has kept."""
        self._load(copy.deepcopy(self._step))

    def stored(self) -> tuple[Any, Any]:
        """Return what is kept, for a checkpoint: what is the same on all ranks, and what is rank 0's."""
        return None, self._snapshot

    def load_stored(self, alike: Any, own: Any) -> None:
        """Take what ``stored`` has returned, and keep it."""
        self._snapshot = own if alike is None else alike
        self.restore()

    def _state(self) -> Any:
        return self.value.state_dict()

    def _load(self, state: Any) -> None:
        self.value.load_state_dict(state)

    def _copied(self) -> Any:
        return copy.deepcopy(self._state())


class ModelStateHandler(StateHandler):
    """A module: parameters and buffers. Gradients are not state: those of the step that failed are forgotten."""

    def restore(self) -> None:
        """Go back to the parameters and buffers that were kept."""
        super().restore()
        self.value.zero_grad(set_to_none=True)

    def sync(self) -> None:
        """Take the root's parameters and buffers, and keep them."""
        broadcast_parameters(self.value.state_dict(), root_rank=self.root)
        self._snapshot = self._copied()

    def stored(self) -> tuple[Any, Any]:
        """Return the parameters, and the buffers with what else there is."""
        names = {name for name, _ in self.value.named_parameters(remove_duplicate=False)}
        alike = {name: value for name, value in self._snapshot.items() if name in names}
        others = {name: value for name, value in self._snapshot.items() if name not in names}
        return alike, {"others": others, "metadata": dict(getattr(self._snapshot, "_metadata", {}))}

    def load_stored(self, alike: Any, own: Any) -> None:
        """Take parameters and buffers."""
        state = OrderedDict({**alike, **own["others"]})
        state._metadata = own["metadata"]  # type: ignore[attr-defined] # noqa: SLF001 - of torch: versions of modules
        super().load_stored(state, None)

    def keep_step(self) -> None:
        """Keep the buffers, which a forward pass changes: the parameters are the optimizer's."""
        self._step = {name: buffer.clone() for name, buffer in self.value.named_buffers()}

    def undo_step(self) -> None:
        """Go back to the buffers that were kept, and forget gradients."""
        with torch.no_grad():
            for name, buffer in self.value.named_buffers():
                buffer.copy_(self._step.get(name, buffer))
        self.value.zero_grad(set_to_none=True)


class OptimizerStateHandler(StateHandler):
    """An optimizer, distributed or not."""

    def restore(self) -> None:
        """Go back to the state and options that were kept."""
        with same_groups(self.value):
            super().restore()
        self.value.zero_grad(set_to_none=True)

    def sync(self) -> None:
        """Take the root's state and options, and keep them."""
        broadcast_optimizer_state(self.value, root_rank=self.root)
        self._snapshot = self._copied()

    def stored(self) -> tuple[Any, Any]:
        """Return all of it."""
        return self._snapshot, None

    def keep_step(self) -> None:
        """Keep nothing: its state changes when its parameters do."""

    def undo_step(self) -> None:
        """Forget gradients."""
        self.value.zero_grad(set_to_none=True)


class LRSchedulerStateHandler(StateHandler):
    """A learning rate scheduler; the rate itself belongs to its optimizer."""


class GradScalerStateHandler(StateHandler):
    """The loss scale of mixed precision."""


class GeneratorStateHandler(StateHandler):
    """A random generator, as ``torch.default_generator``."""

    def _state(self) -> Any:
        return self.value.get_state()

    def _load(self, state: Any) -> None:
        self.value.set_state(state)


class SamplerStateHandler(StateHandler):
    """An ElasticSampler. Each rank records what it has processed; together they know it all."""

    def save(self) -> None:
        """Keep what all ranks have processed. Collective."""
        self.agree()
        self._snapshot = self.value.progress()

    def restore(self) -> None:
        """Go back to what was kept."""
        self.value.go_back(self._snapshot)

    def agree(self) -> None:
        """Hear what the other ranks have processed. Collective."""
        self.value.hear(allgather(self.value.recorded(), name="elastic.sampler"))

    def sync(self) -> None:
        """Go on where the root is, without what others have processed since the ranks last agreed. Collective."""
        everyone = allgather_object(self.value.told(), name="elastic.sampler")
        self.value.load_state_dict(self.value.merged(everyone, self.root))
        self._snapshot = self.value.progress()

    def stored(self) -> tuple[Any, Any]:
        """Return what all ranks have processed."""
        return None, self.value.agreed(self._snapshot)

    def load_stored(self, alike: Any, own: Any) -> None:
        """Go on from there, with the ranks that there are now."""
        del alike
        self.value.load_state_dict(own)
        self._snapshot = self.value.progress()

    def keep_step(self) -> None:
        """Keep what is processed."""
        self._step = self.value.progress()

    def undo_step(self) -> None:
        """Go back to what the last step has kept."""
        self.value.go_back(self._step)

    def _copied(self) -> Any:
        return self.value.progress()
