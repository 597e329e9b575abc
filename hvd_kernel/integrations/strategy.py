"""Strategy of a Lightning Trainer: training on ranks that exist already; for either of Lightning's packages.

Term.
  plain  the optimizer that a LightningModule configures; a DistributedOptimizer replaces it
"""
# ruff: noqa: D102 - Lightning's interface, documented there

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

import hvd_kernel.torch as hvd
from hvd_kernel.integrations import needed
from hvd_kernel.integrations.averaging import Averaging, distributed, share, share_state

FITTING = "fit"
_OPS = {
    "mean": hvd.Average,
    "avg": hvd.Average,
    "sum": hvd.Sum,
    "min": hvd.Min,
    "max": hvd.Max,
    "product": hvd.Product,
}
if TYPE_CHECKING:  # the base class belongs to the requested package: see strategy_of
    from typing import Any as _Unknown
else:
    _Unknown = object


class RankEnvironment(_Unknown):  # type: ignore[misc]
    """The ranks as Lightning's ClusterEnvironment: all of them run, nothing is to be launched."""

    creates_processes_externally = True

    @property
    def main_address(self) -> str:
        """Raise an error: only strategies that use torch.distributed read this."""
        raise RuntimeError("There is no torch.distributed among these ranks: use Trainer(strategy=HorovodStrategy()).")

    main_port = main_address

    @staticmethod
    def detect() -> bool:
        return bool(hvd.is_initialized())

    def world_size(self) -> int:
        return int(hvd.size())

    def global_rank(self) -> int:
        return int(hvd.rank())

    def local_rank(self) -> int:
        return int(hvd.local_rank())

    def node_rank(self) -> int:
        return int(hvd.cross_rank())

    def set_world_size(self, size: int) -> None:
        """Ignore the size that Lightning computes from its devices."""

    def set_global_rank(self, rank: int) -> None:
        """Ignore the rank that Lightning computes."""


class Strategy(_Unknown):  # type: ignore[misc]
    """Data parallel training: every rank has the whole model and its part of each batch; gradients are averaged.

    Parameters
    ----------
    accelerator, checkpoint_io, precision_plugin
        As of Lightning's own strategies.
    optimizer_options
        Further options of ``hvd.DistributedOptimizer``: compression, op, groups, gradients_in_buckets ...
    """

    strategy_name = "horovod"
    is_distributed = True
    model: Any
    optimizers: Any
    _environment: type[Any]
    _rank_zero: list[Any]

    def __init__(
        self, accelerator: Any = None, checkpoint_io: Any = None, precision_plugin: Any = None, **optimizer_options: Any
    ) -> None:
        hvd.init()
        super().__init__(
            accelerator=accelerator,
            cluster_environment=self._environment(),
            checkpoint_io=checkpoint_io,
            precision_plugin=precision_plugin,
        )
        self._options = optimizer_options
        self._averaging = Averaging(lambda: self.optimizers)

    # Ranks and devices.

    @property
    def root_device(self) -> torch.device:
        """The device at the local rank in ``Trainer(devices=...)``, or the GPU of that number."""
        devices: list[torch.device] = self.parallel_devices or [torch.device("cpu")]
        if self.local_rank < len(devices):
            return devices[self.local_rank]
        if devices[0].type == "cuda":
            return torch.device("cuda", self.local_rank % torch.cuda.device_count())
        return devices[0]

    @property
    def distributed_sampler_kwargs(self) -> dict[str, int]:
        return {"num_replicas": self.world_size, "rank": self.global_rank}

    def set_world_ranks(self) -> None:
        """Set the rank that Lightning's ``rank_zero_only`` compares with 0."""
        for rank_zero_only in self._rank_zero:
            rank_zero_only.rank = self.global_rank

    # The model and its optimizers.

    def model_to_device(self) -> None:
        self.model.to(self.root_device)

    def setup(self, trainer: Any) -> None:
        """Broadcast rank 0's model, and make the optimizers distributed."""
        if trainer.state.fn == FITTING and self._layer_sync is not None:
            self.model = hvd.convert_sync_batchnorm(self.model)
        super().setup(trainer)
        _share_metrics(self.lightning_module)

    def _setup_model(self, model: torch.nn.Module) -> torch.nn.Module:
        share(model)
        return model

    def setup_optimizers(self, trainer: Any) -> None:
        """Wrap the optimizers that the LightningModule configures as DistributedOptimizers."""
        super().setup_optimizers(trainer)
        self.optimizers = [
            distributed(plain, self.lightning_module, f"optimizer.{number}", self._options)
            for number, plain in enumerate(self.optimizers)
        ]

    def on_train_start(self) -> None:
        """Broadcast rank 0's state of the optimizers, whether it is new or comes from a checkpoint."""
        for optimizer in self.optimizers:
            share_state(optimizer)

    # A step.

    def block_backward_sync(self) -> AbstractContextManager[None]:
        """Accumulate gradients on this rank; their sum is reduced once, afterwards."""
        return self._averaging.held_back()

    def backward(self, closure_loss: Tensor, optimizer: Any, *args: Any, **kwargs: Any) -> Tensor:
        """Compute gradients and average them, so that hooks and clipping see the gradients of the step."""
        module, precision = self.lightning_module, self.precision_plugin
        closure_loss = precision.pre_backward(closure_loss, module)
        precision.backward(closure_loss, module, optimizer, *args, **kwargs)
        self._averaging.after_backward()
        result: Tensor = precision.post_backward(closure_loss, module)
        return result

    def optimizer_step(self, optimizer: Any, closure: Callable[[], Any], model: Any = None, **kwargs: Any) -> Any:
        """Apply averaged gradients; a rank without a backward pass contributes zeros."""

        def averaged() -> Any:
            loss = closure()
            self._averaging.before_step(optimizer)
            if isinstance(optimizer, torch.optim.LBFGS):  # the loss decides on its next move: the same on all ranks
                return self.reduce(loss)
            return loss

        with self._averaging.stepping(optimizer):
            return super().optimizer_step(optimizer, averaged, model, **kwargs)

    # Collectives.

    def reduce(self, tensor: Any, group: Any = None, reduce_op: Any = "mean") -> Any:
        """Return the reduction over all ranks, of integers as floats for a mean; return other values unchanged."""
        if not isinstance(tensor, Tensor):
            return tensor
        op = _op(reduce_op)
        if op == hvd.Average and not (tensor.is_floating_point() or tensor.is_complex()):
            tensor = tensor.to(torch.get_default_dtype())
        with torch.no_grad():
            return hvd.allreduce(tensor, op=op, process_set=_members(group))

    def barrier(self, name: str | None = None) -> None:  # noqa: ARG002 - of Lightning's interface
        hvd.barrier()

    def broadcast(self, obj: Any, src: int = 0) -> Any:
        return hvd.broadcast_object(obj, root_rank=src)

    def all_gather(self, tensor: Tensor, group: Any = None, sync_grads: bool = False) -> Tensor:
        """Return the tensors of all ranks, which have the same shape, stacked as rows."""
        with torch.set_grad_enabled(sync_grads and torch.is_grad_enabled()):
            return hvd.allgather(tensor.unsqueeze(0), process_set=_members(group))


def _op(reduce_op: Any) -> int:
    """Return the operation of a name of Lightning's, or of a ReduceOp of torch.distributed."""
    name = reduce_op if isinstance(reduce_op, str) else str(reduce_op).rsplit(".", maxsplit=1)[-1]
    if name.lower() not in _OPS:
        raise ValueError(f"reduce_op={reduce_op!r} is not available: use one of {', '.join(_OPS)}.")
    return _OPS[name.lower()]


def _members(group: Any) -> hvd.ProcessSet:
    if group is None:
        return hvd.global_process_set
    if isinstance(group, hvd.ProcessSet):
        return group
    raise ValueError(f"group={group!r} is not one of these ranks' groups: pass a hvd.ProcessSet, or None for all.")


def _gathered(tensor: Tensor, group: Any = None) -> list[Tensor]:
    """Return the tensors of all ranks, whose shapes may differ; the ``dist_sync_fn`` of torchmetrics."""
    members = _members(group)
    flat = hvd.allgather(tensor.detach().reshape(-1), process_set=members)
    shapes = hvd.allgather_object(tuple(tensor.shape), process_set=members)
    parts = flat.split([torch.Size(shape).numel() for shape in shapes])  # type: ignore[no-untyped-call]
    return [part.reshape(shape) for part, shape in zip(parts, shapes, strict=True)]


def _share_metrics(module: torch.nn.Module) -> None:
    """Set the module's torchmetrics to gather over these ranks, unless they have a ``dist_sync_fn`` already."""
    torchmetrics = sys.modules.get("torchmetrics")
    if torchmetrics is None:
        return
    for metric in module.modules():
        if isinstance(metric, torchmetrics.Metric) and metric.dist_sync_fn is None:
            metric.dist_sync_fn, metric.distributed_available_fn = _gathered, _several_ranks


def _several_ranks() -> bool:
    return bool(hvd.is_initialized()) and hvd.size() > 1


def strategy_of(package: str, fabric: str, module: str) -> type[Any]:
    """Create the strategy class for one of Lightning's packages, and register it there as "horovod".

    ``module`` is the name of the module that exports the class.
    """
    extra = "lightning"
    strategies = needed(f"{package}.strategies", extra)
    plugins = needed(f"{fabric}.plugins", extra)
    zero = [needed(f"{name}.utilities.rank_zero", extra).rank_zero_only for name in (package, fabric)]
    environment = type("HorovodEnvironment", (RankEnvironment, plugins.ClusterEnvironment), {})
    names = {"_environment": environment, "_rank_zero": zero, "__doc__": Strategy.__doc__, "__module__": module}
    strategy = type("HorovodStrategy", (Strategy, strategies.ParallelStrategy), names)
    about = "hvd_kernel: the ranks of hvdrun, a cell, mpirun or srun"
    strategies.StrategyRegistry.register(Strategy.strategy_name, strategy, description=about, override=True)
    return strategy
