"""Frontends: which of our modules is Horovod's API for a framework, and which of its modules take long. A table.

Nothing of a framework is imported for it, nor its adapter: it says what is worth importing before anybody asks.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Frontend:
    """Horovod's API for a framework."""

    package: str
    api: str
    prefetched: dict[str, float] = field(default_factory=dict)  # modules, and seconds without a cell before each
    companions: tuple[str, ...] = ()  # packages that it imports, and that import it
    later: tuple[str, ...] = ()  # modules that come with the first optimizer, and take seconds
    attached: dict[str, str] = field(default_factory=dict)  # one of its modules -> ours: its ``attach`` is given that


FRONTENDS = (
    Frontend(
        "torch",
        "hvd_kernel.torch",
        {"torch": 0.5, "torch._dynamo": 2.0},
        later=("torch._dynamo",),
        attached={
            "torch._inductor.compile_fx": "hvd_kernel.torch.compile_once",
            "torch": "hvd_kernel.frameworks.torch_steps",
        },
    ),
    Frontend("tensorflow", "hvd_kernel.tensorflow", {"tensorflow": 0.5}, ("keras", "tf_keras")),
    Frontend("jax", "hvd_kernel.jax", {"jax": 0.5}),
    Frontend("mxnet", "hvd_kernel.mxnet", {"hvd_kernel.mxnet": 0.5}),  # which puts back first what MXNet needs
)
"""The first one that is installed is the notebook's ``hvd``."""
NUMPY = Frontend("numpy", "hvd_kernel.numpy")
"""It is that where none is."""
