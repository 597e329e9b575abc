"""Horovod's API for JAX: ``import hvd_kernel.jax as hvd``. Horovod itself has none.

::

    hvd.init()
    params = hvd.broadcast_parameters(params, root_rank=0)
    tx = hvd.DistributedGradientTransformation(optax.sgd(0.1 * hvd.size()))

    @jax.jit
    def step(params, opt_state, batch):
        loss, grads = jax.value_and_grad(loss_fn)(params, batch)
        updates, opt_state = tx.update(grads, opt_state, params)
        return optax.apply_updates(params, updates), opt_state, hvd.allreduce(loss)
"""

from __future__ import annotations

import importlib
import importlib.util

from packaging.version import Version

from hvd_kernel import __version__
from hvd_kernel.core import basics
from hvd_kernel.core.basics import *  # noqa: F403 - exactly its __all__
from hvd_kernel.core.benchmark import bench
from hvd_kernel.core.metrics import log, log_artifact, log_model, outputs_path
from hvd_kernel.core.process_sets import ProcessSet, add_process_set, global_process_set, remove_process_set
from hvd_kernel.formatting.install_command import install_command
from hvd_kernel.frameworks import installed


def _check_jax() -> None:
    """Import JAX before the modules below do.

    Raises
    ------
    ModuleNotFoundError
        JAX is not installed.
    ImportError
        The installed version is too old.
    """
    pip = install_command("jax")
    spec = importlib.util.find_spec("jax")
    if spec is None or spec.origin is None:  # an empty folder named jax has a spec without an origin
        raise ModuleNotFoundError(f"hvd_kernel.jax needs JAX, which is not installed in this Python: {pip}", name="jax")
    version = importlib.import_module("jax").__version__
    floor = next(framework.floor for framework in installed.FRAMEWORKS if framework.package == "jax")
    if Version(version) < Version(floor):
        raise ImportError(f"hvd_kernel.jax needs JAX {floor} or newer, and {version} is installed: {pip}")


_check_jax()

from hvd_kernel.jax import elastic
from hvd_kernel.jax.library import translated
from hvd_kernel.jax.ops import (
    Compression,
    allgather,
    allgather_object,
    allreduce,
    alltoall,
    barrier,
    broadcast,
    broadcast_object,
    broadcast_parameters,
    grouped_allgather,
    grouped_allreduce,
    grouped_broadcast,
    grouped_reducescatter,
    join,
    reducescatter,
)
from hvd_kernel.jax.optimizer import DistributedGradientTransformation, grad, value_and_grad

__all__ = [
    "Compression",
    "DistributedGradientTransformation",
    "ProcessSet",
    "__version__",
    "add_process_set",
    "allgather",
    "allgather_object",
    "allreduce",
    "alltoall",
    "barrier",
    "bench",
    "broadcast",
    "broadcast_object",
    "broadcast_parameters",
    "elastic",
    "global_process_set",
    "grad",
    "grouped_allgather",
    "grouped_allreduce",
    "grouped_broadcast",
    "grouped_reducescatter",
    "join",
    "log",
    "log_artifact",
    "log_model",
    "outputs_path",
    "reducescatter",
    "remove_process_set",
    "translated",
    "value_and_grad",
]
__all__ += basics.__all__
