"""One trainer for each optimizer of a framework: how a program makes its parameters, its losses and its steps.

Every trainer begins with parameters of zeros; a loss is the sum of the parameters times the gradients that they are to have.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MethodType
from typing import Any, ClassVar

import numpy as np
from frameworks.conformance.adapters import Adapter
from frameworks.conformance.table import Value
from frameworks.conformance.training import REFUSED, SHAPES, Training

Gradients = Sequence[Sequence[Any]]  # for each pass, of each parameter; None: the loss does not depend on it


class Trainer:
    traits: ClassVar[frozenset[str]] = frozenset()  # options, and other features of a row, that the optimizer has
    counts_steps = True  # on the panel

    def __init__(self, adapter: Adapter, options: Mapping[str, Any], local: frozenset[int] = frozenset()) -> None:
        self.adapter, self.hvd = adapter, adapter.hvd
        self.parameters = [self.parameter(adapter.array(Value(np.zeros(shape), "float32"))) for shape in SHAPES]
        options = adapter.given(options)
        if isinstance(options.get("groups"), list):
            options["groups"] = [[self.parameters[number] for number in group] for group in options["groups"]]
        self.local = [self.parameters[number] for number in local]
        self.begin(options)

    @classmethod
    def supports(cls, row: Training, size: int) -> bool:
        return row.traits <= cls.traits and size <= row.most_ranks

    @classmethod
    def refuses(cls) -> list[str]:
        """Return the names of the options that this optimizer knows and refuses."""
        return [name for name, (options, _) in REFUSED.items() if set(options) - {"op"} <= cls.traits]

    def parameter(self, array: Any) -> Any:
        return array

    def begin(self, options: dict[str, Any]) -> None:
        """Make the optimizer."""
        raise NotImplementedError

    def step(self, passes: Gradients) -> None:
        raise NotImplementedError

    def read(self) -> list[Any]:
        return self.parameters


COMMON = frozenset(("op Sum", "gradient_predivide_factor", "groups", "compression", "process_set", "apart", "unused"))
PASSES = frozenset(("backward_passes_per_step", "average_aggregated_gradients"))
LOCAL = frozenset(("local", "scale_local_gradients"))


class Torch(Trainer):
    """Parameters with names; the step reduces the gradients of backward."""

    traits = COMMON | {"backward_passes_per_step", "missing", "joins", "gradients_in_buckets"}
    named = True

    def parameter(self, array: Any) -> Any:
        import torch

        return torch.nn.Parameter(array)

    def begin(self, options: dict[str, Any]) -> None:
        import torch

        if self.named:
            options["named_parameters"] = [(f"weight{i}", param) for i, param in enumerate(self.parameters)]
        self.optimizer = self.hvd.DistributedOptimizer(torch.optim.SGD(self.parameters, lr=1.0), **options)

    def step(self, passes: Gradients) -> None:
        self.optimizer.zero_grad(set_to_none=self.named or self.hvd.rank() % 2 == 1)
        for grads in passes:
            pairs = zip(self.parameters, grads, strict=True)
            sum((param * grad).sum() for param, grad in pairs if grad is not None).backward()
        self.update()

    def update(self) -> None:
        self.optimizer.step()

    def read(self) -> list[Any]:
        return [param.detach() for param in self.parameters]


class TorchSynchronized(Torch):
    """Parameters without names; gradients are read between their reduction and the step."""

    named = False

    def update(self) -> None:
        self.optimizer.synchronize()
        moved = [param.detach() - (0 if param.grad is None else param.grad) for param in self.parameters]
        with self.optimizer.skip_synchronize():
            self.optimizer.step()
        assert all((param == want).all() for param, want in zip(self.parameters, moved, strict=True))


class TensorflowTape(Trainer):
    traits = COMMON | LOCAL | {"joins"}
    traced = False

    @classmethod
    def refuses(cls) -> list[str]:
        return [name for name in super().refuses() if name != "an unknown set"]  # the first step does

    def parameter(self, array: Any) -> Any:
        import tensorflow as tf

        return tf.Variable(array)

    def begin(self, options: dict[str, Any]) -> None:
        import tensorflow as tf

        self.options = options
        self.hvd.DistributedGradientTape(tf.GradientTape(), **options)

    def step(self, passes: Gradients) -> None:
        import tensorflow as tf

        if self.traced and isinstance(self.run, MethodType):
            self.run = tf.function(self.run)  # type: ignore[method-assign]
        for grads in passes:
            self.run(grads)

    def run(self, grads: Sequence[Any]) -> None:
        import tensorflow as tf

        with tf.GradientTape() as tape:
            loss = self.loss(grads)
        tape = self.hvd.DistributedGradientTape(tape, **self.options)
        for source in self.local:
            tape.register_local_source(source)
        for param, grad in zip(self.parameters, tape.gradient(loss, self.parameters), strict=True):
            if grad is not None:
                param.assign_sub(grad)

    def loss(self, grads: Sequence[Any]) -> Any:
        import tensorflow as tf

        pairs = zip(self.parameters, grads, strict=True)
        return tf.add_n([tf.reduce_sum(param * grad) for param, grad in pairs if grad is not None])


class TensorflowFunction(TensorflowTape):
    """The same as a graph."""

    traced = True


class TensorflowOptimizer(TensorflowTape):
    """An optimizer of TensorFlow 1."""

    traits = COMMON | PASSES | LOCAL | {"op Adasum"}

    def begin(self, options: dict[str, Any]) -> None:
        import tensorflow as tf

        plain = tf.compat.v1.train.GradientDescentOptimizer(1.0)
        self.optimizer = self.hvd.DistributedOptimizer(plain, **options)
        for variable in self.local:
            self.optimizer.register_local_var(variable)

    def run(self, grads: Sequence[Any]) -> None:
        used = [param for param, grad in zip(self.parameters, grads, strict=True) if grad is not None]
        self.optimizer.minimize(lambda: self.loss(grads), var_list=used)


class TensorflowOptimizerFunction(TensorflowOptimizer):
    traced = True


class Keras(Trainer):
    traits = COMMON | PASSES | {"missing", "local"}
    counts_steps = False  # fit() counts them

    def parameter(self, array: Any) -> Any:
        from hvd_kernel.keras.flavour import keras

        return keras.Variable(array) if hasattr(keras, "Variable") else __import__("tensorflow").Variable(array)

    @classmethod
    def supports(cls, row: Training, size: int) -> bool:
        from hvd_kernel.keras.flavour import BACKEND

        return super().supports(row, size) and (BACKEND in {"torch", "jax"} or not {"missing", "local"} & row.traits)

    @classmethod
    def refuses(cls) -> list[str]:
        return [name for name in super().refuses() if name not in {"Adasum of averaged passes", "an unknown set"}]

    def begin(self, options: dict[str, Any]) -> None:
        from hvd_kernel.keras.flavour import keras

        self.optimizer = self.hvd.DistributedOptimizer(keras.optimizers.SGD(1.0), **options)
        for variable in self.local:
            self.optimizer.register_local_var(variable)

    def step(self, passes: Gradients) -> None:
        from hvd_kernel.keras.flavour import keras

        for grads in passes:
            tensors = [
                keras.ops.convert_to_tensor(grad) if hasattr(keras, "ops") and grad is not None else grad
                for grad in grads
            ]
            self.optimizer.apply_gradients(list(zip(tensors, self.parameters, strict=True)))

    def read(self) -> list[Any]:
        from hvd_kernel.keras.flavour import array_of

        return [array_of(param) for param in self.parameters]


class Jax(Trainer):
    """An optimizer of optax, in Python."""

    traits = (COMMON | PASSES | {"op Adasum"}) - {"apart", "unused"}

    def begin(self, options: dict[str, Any]) -> None:
        import optax

        if "backward_passes_per_step" in options:  # optax's name
            options["every_k"] = options.pop("backward_passes_per_step")
            assert options.pop("average_aggregated_gradients"), "sums of passes have no name in optax"
        self.optimizer = self.hvd.DistributedGradientTransformation(optax.sgd(1.0), **options)
        self.state = self.optimizer.init(self.parameters)

    @classmethod
    def supports(cls, row: Training, size: int) -> bool:
        lists = isinstance(row.options.get("groups"), list)
        sums = row.passes > 1 and "average_aggregated_gradients" not in row.options
        return super().supports(row, size) and not lists and not sums

    @classmethod
    def refuses(cls) -> list[str]:
        return ["an unknown set"]

    def step(self, passes: Gradients) -> None:
        for grads in passes:
            self.parameters, self.state = self.run(self.parameters, self.state, list(grads))

    def run(self, parameters: Any, state: Any, grads: Any) -> Any:
        import optax

        updates, state = self.optimizer.update(grads, state, parameters)
        return optax.apply_updates(parameters, updates), state


class JaxJit(Jax):
    """The same as a program."""

    def begin(self, options: dict[str, Any]) -> None:
        import jax

        super().begin(options)
        self.run = jax.jit(self.run)  # type: ignore[method-assign]


class JaxGradients(Jax):
    """Gradients that are reduced without an optimizer."""

    traits = frozenset(("op Sum", "groups", "compression", "process_set"))

    def begin(self, options: dict[str, Any]) -> None:
        import jax

        def loss(parameters: Any, grads: Any) -> Any:
            return sum((param * grad).sum() for param, grad in zip(parameters, grads, strict=True))

        self.reduced = jax.jit(self.hvd.grad(loss, **options))

    @classmethod
    def refuses(cls) -> list[str]:
        return []

    def step(self, passes: Gradients) -> None:
        grads = self.reduced(self.parameters, list(passes[0]))
        self.parameters = [param - grad for param, grad in zip(self.parameters, grads, strict=True)]


class MxnetTrainer(Trainer):
    """A trainer of gluon; gradients are reduced, then used."""

    traits = frozenset(("gradient_predivide_factor", "groups", "compression", "process_set", "apart"))

    @classmethod
    def supports(cls, row: Training, size: int) -> bool:
        lists = isinstance(row.options.get("groups"), list)
        return super().supports(row, size) and not lists and row.options.get("compression") != "bf16"

    @classmethod
    def refuses(cls) -> list[str]:
        return ["an unknown set"]

    def parameter(self, array: Any) -> Any:
        import mxnet as mx

        made = mx.gluon.Parameter(f"weight{array.size}", shape=array.shape)
        made.initialize(mx.init.Zero())
        return made

    def begin(self, options: dict[str, Any]) -> None:
        if "groups" in options:
            options["num_groups"] = options.pop("groups")
        self.make(options)

    def make(self, options: dict[str, Any]) -> None:
        self.trainer = self.hvd.DistributedTrainer(self.parameters, "sgd", {"learning_rate": 1.0}, **options)

    def step(self, passes: Gradients) -> None:
        import mxnet as mx

        with mx.autograd.record():
            pairs = zip(self.parameters, passes[0], strict=True)
            loss = sum((param.data() * grad).sum() for param, grad in pairs)
        loss.backward()
        self.update()

    def update(self) -> None:
        before = self.read()
        self.trainer.allreduce_grads()
        moved = [start - param.grad() for start, param in zip(before, self.parameters, strict=True)]
        self.trainer.update(1)
        assert all((array == want).min() for array, want in zip(self.read(), moved, strict=True))

    def read(self) -> list[Any]:
        return [param.data().copy() for param in self.parameters]


class MxnetOptimizer(MxnetTrainer):
    """An optimizer in a loop of the program."""

    traits = MxnetTrainer.traits - {"compression"}

    def make(self, options: dict[str, Any]) -> None:
        import mxnet as mx

        self.optimizer = self.hvd.DistributedOptimizer(mx.optimizer.SGD(learning_rate=1.0), **options)

    def update(self) -> None:
        arrays, grads = ([getattr(param, kind)() for param in self.parameters] for kind in ("data", "grad"))
        self.optimizer.update([0, 1, 2], arrays, grads, [None] * 3)


TRAINERS: dict[str, dict[str, type[Trainer]]] = {  # by the adapter of their framework
    "torch": {"optimizer": Torch, "optimizer, synchronized": TorchSynchronized},
    "tensorflow": {
        "tape": TensorflowTape,
        "tape in a function": TensorflowFunction,
        "optimizer": TensorflowOptimizer,
        "optimizer in a function": TensorflowOptimizerFunction,
    },
    "keras": {"optimizer": Keras},
    "jax": {"optimizer": Jax, "gradients": JaxGradients},
    "jax, jit": {"optimizer": JaxJit},
    "mxnet": {"trainer": MxnetTrainer, "optimizer": MxnetOptimizer},
}
