"""Frontends: a table of frameworks with the module of their Horovod API and the modules that are slow to import.

Using the table imports neither a framework nor its adapter. It selects what is imported before a cell needs it.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Frontend:
    """Horovod's API for a framework."""

    package: str
    api: str
    prefetched: dict[str, float] = field(default_factory=dict)  # modules -> idle seconds before their import
    companions: tuple[str, ...] = ()  # packages that import this one, or that it imports
    later: tuple[str, ...] = ()  # modules imported by the first optimizer, which takes seconds
    attached: dict[str, str] = field(default_factory=dict)  # module -> ours, whose ``attach`` receives it


_STEP_COUNTS = dict.fromkeys(("keras", "tf_keras", "mxnet.gluon.trainer"), "hvd_kernel.core.step_counts")
FRONTENDS = (
    Frontend(
        "torch",
        "hvd_kernel.torch",
        {"torch": 0.5, "torch._dynamo": 2.0},
        later=("torch._dynamo",),
        attached={
            "torch._inductor.compile_fx": "hvd_kernel.torch.compile_once",
            "torch": "hvd_kernel.frameworks.torch_steps",
            "torch.distributed": "hvd_kernel.frameworks.torch_backend",
            **_STEP_COUNTS,
        },
    ),
    Frontend("tensorflow", "hvd_kernel.tensorflow", {"tensorflow": 0.5}, ("keras", "tf_keras"), attached=_STEP_COUNTS),
    Frontend("jax", "hvd_kernel.jax", {"jax": 0.5}, attached=_STEP_COUNTS),
    Frontend(  # ours first: it restores names that MXNet needs
        "mxnet", "hvd_kernel.mxnet", {"hvd_kernel.mxnet": 0.5}, attached=_STEP_COUNTS
    ),
)
"""The notebook's ``hvd`` is the first one that is installed."""
NUMPY = Frontend("numpy", "hvd_kernel.numpy")
"""The notebook's ``hvd`` if no framework is installed."""
