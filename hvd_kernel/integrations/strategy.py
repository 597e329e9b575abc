"""Strategy of a Lightning Trainer: training on ranks that exist already; for either of Lightning's packages.

Terms.
  plain  the optimizer that a LightningModule configures
  made   the DistributedOptimizer in its place
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
if TYPE_CHECKING:  # the base class is that of the library which is asked for: see strategy_of
    from typing import Any as _Unknown
else:
    _Unknown = object


class RankEnvironment(_Unknown):  # type: ignore[misc]
    """The ranks as Lightning's ClusterEnvironment: all of them run, nothing is to be launched."""

    creates_processes_externally = True

    @property
    def main_address(self) -> str:
        """Refuse: it is asked for by strategies that use torch.distributed."""
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
        """Keep ours: Lightning counts devices."""

    def set_global_rank(self, rank: int) -> None:
        """Keep ours."""


class Strategy(_Unknown):  # type: ignore[misc]
    """Every rank has the whole model and its part of each batch; gradients are averaged.

    Parameters
    ----------
    accelerator, checkpoint_io, precision_plugin
        As of Lightning's own strategies.
    optimizer_options
        What else ``hvd.DistributedOptimizer`` takes: compression, op, groups, gradients_in_buckets ...
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

    # Who we are.

    @property
    def root_device(self) -> torch.device:
        """Each rank has the next of the devices that ``Trainer(devices=...)`` names; its own GPU where that is one."""
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
        """Have Lightning's ``rank_zero_only`` know rank 0."""
        for each in self._rank_zero:
            each.rank = self.global_rank

    # The model and its optimizers.

    def model_to_device(self) -> None:
        self.model.to(self.root_device)

    def setup(self, trainer: Any) -> None:
        """Give all ranks rank 0's model and optimizers that average."""
        if trainer.state.fn == FITTING and self._layer_sync is not None:
            self.model = hvd.convert_sync_batchnorm(self.model)
        super().setup(trainer)
        _share_metrics(self.lightning_module)

    def _setup_model(self, model: torch.nn.Module) -> torch.nn.Module:
        share(model)
        return model

    def setup_optimizers(self, trainer: Any) -> None:
        """Make the optimizers distributed that the LightningModule configures."""
        super().setup_optimizers(trainer)
        self.optimizers = [
            distributed(plain, self.lightning_module, f"optimizer.{number}", self._options)
            for number, plain in enumerate(self.optimizers)
        ]

    def on_train_start(self) -> None:
        """Give all ranks rank 0's state of the optimizers, be it new or a checkpoint's."""
        for made in self.optimizers:
            share_state(made)

    # A step.

    def block_backward_sync(self) -> AbstractContextManager[None]:
        """Sum gradients on this rank alone: batches are accumulated, and their sum travels once."""
        return self._averaging.held_back()

    def backward(self, closure_loss: Tensor, optimizer: Any, *args: Any, **kwargs: Any) -> Tensor:
        """Compute gradients and average them: hooks and clipping see what the optimizer will."""
        module, precision = self.lightning_module, self.precision_plugin
        closure_loss = precision.pre_backward(closure_loss, module)
        precision.backward(closure_loss, module, optimizer, *args, **kwargs)
        self._averaging.after_backward()
        result: Tensor = precision.post_backward(closure_loss, module)
        return result

    def optimizer_step(self, optimizer: Any, closure: Callable[[], Any], model: Any = None, **kwargs: Any) -> Any:
        """Take a step with averaged gradients; without any on this rank (no backward pass), with the others'."""

        def averaged() -> Any:
            loss = closure()
            self._averaging.before_step(optimizer)
            if isinstance(optimizer, torch.optim.LBFGS):  # the loss decides on its next move: for all alike
                return self.reduce(loss)
            return loss

        with self._averaging.stepping(optimizer):
            return super().optimizer_step(optimizer, averaged, model, **kwargs)

    # Collectives.

    def reduce(self, tensor: Any, group: Any = None, reduce_op: Any = "mean") -> Any:
        """Return the reduction over all ranks; whole numbers have a mean with a fraction. No tensor: as it is."""
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
        """Return the ranks' tensors, which have one shape, as rows of one."""
        with torch.set_grad_enabled(sync_grads and torch.is_grad_enabled()):
            return hvd.allgather(tensor.unsqueeze(0), process_set=_members(group))


def _op(name: Any) -> int:
    """Return the operation that Lightning names, by a word or by torch.distributed's ReduceOp."""
    word = name if isinstance(name, str) else str(name).rsplit(".", maxsplit=1)[-1]
    if word.lower() not in _OPS:
        raise ValueError(f"reduce_op={name!r} is not available: use one of {', '.join(_OPS)}.")
    return _OPS[word.lower()]


def _members(group: Any) -> hvd.ProcessSet:
    if group is None:
        return hvd.global_process_set
    if isinstance(group, hvd.ProcessSet):
        return group
    raise ValueError(f"group={group!r} is not one of these ranks' groups: pass a hvd.ProcessSet, or None for all.")


def _gathered(tensor: Tensor, group: Any = None) -> list[Tensor]:
    """Return every rank's tensor, whose shapes may differ: what torchmetrics calls dist_sync_fn."""
    members = _members(group)
    flat = hvd.allgather(tensor.detach().reshape(-1), process_set=members)
    shapes = hvd.allgather_object(tuple(tensor.shape), process_set=members)
    parts = flat.split([torch.Size(shape).numel() for shape in shapes])  # type: ignore[no-untyped-call]
    return [part.reshape(shape) for part, shape in zip(parts, shapes, strict=True)]


def _share_metrics(module: torch.nn.Module) -> None:
    """Have the module's torchmetrics gather over these ranks, unless they have a way of their own."""
    torchmetrics = sys.modules.get("torchmetrics")
    if torchmetrics is None:
        return
    for each in module.modules():
        if isinstance(each, torchmetrics.Metric) and each.dist_sync_fn is None:
            each.dist_sync_fn, each.distributed_available_fn = _gathered, _several_ranks


def _several_ranks() -> bool:
    return bool(hvd.is_initialized()) and hvd.size() > 1


def strategy_of(package: str, fabric: str, module: str) -> type[Any]:
    """Return the strategy for one of Lightning's packages, registered there as "horovod", for a module to have."""
    extra = "lightning"
    strategies = needed(f"{package}.strategies", extra)
    plugins = needed(f"{fabric}.plugins", extra)
    zero = [needed(f"{each}.utilities.rank_zero", extra).rank_zero_only for each in (package, fabric)]
    environment = type("HorovodEnvironment", (RankEnvironment, plugins.ClusterEnvironment), {})
    names = {"_environment": environment, "_rank_zero": zero, "__doc__": Strategy.__doc__, "__module__": module}
    made = type("HorovodStrategy", (Strategy, strategies.ParallelStrategy), names)
    about = "hvd_kernel: the ranks of hvdrun, a cell, mpirun or srun"
    strategies.StrategyRegistry.register(Strategy.strategy_name, made, description=about, override=True)
    return made
