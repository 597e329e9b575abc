"""Hugging Face's Trainer on our ranks: ``HorovodTrainer``, or ``HorovodMixin`` before another Trainer class.

Accelerate, on which the Trainer stands, hears the number of ranks and its own number among them, so that it gives each
rank its batches, and that it is not distributed by its own means: what travels goes through an accelerator of ours.
"""
# ruff: noqa: D102 - accelerate's and the Trainer's interface, documented there

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from hvd_kernel.integrations import needed

needed("transformers", "transformers")  # before torch, which takes seconds

import torch  # noqa: E402
from accelerate import Accelerator, PartialState  # noqa: E402
from accelerate.optimizer import AcceleratedOptimizer  # noqa: E402
from accelerate.state import AcceleratorState  # noqa: E402
from accelerate.utils import DistributedType, recursively_apply  # noqa: E402
from torch import Tensor  # noqa: E402
from transformers import Trainer, TrainerCallback, TrainingArguments  # noqa: E402

import hvd_kernel.torch as hvd  # noqa: E402
from hvd_kernel.integrations.averaging import Averaging, distributed, share, share_state  # noqa: E402

if TYPE_CHECKING:  # the base class is the Trainer that the mixin stands before
    from typing import Any as _Unknown
else:
    _Unknown = object


def set_rank(args: Any) -> None:
    """Tell TrainingArguments, and accelerate behind them, which rank of how many this is."""
    hvd.init()
    cpu = bool(args.use_cpu) or not torch.cuda.is_available()
    device = torch.device("cpu") if cpu else torch.device("cuda", hvd.local_rank() % torch.cuda.device_count())
    if not cpu:
        torch.cuda.set_device(device)
    AcceleratorState._reset_state(reset_partial_state=True)  # noqa: SLF001 - as TrainingArguments does
    PartialState._shared_state.update(  # noqa: SLF001 - its own way would look for torch.distributed's variables
        _cpu=cpu,
        backend=None,
        debug=False,
        device=device,
        distributed_type=DistributedType.NO,
        num_processes=hvd.size(),
        process_index=hvd.rank(),
        local_process_index=hvd.local_rank(),
    )
    args.distributed_state = PartialState()
    args._n_gpu = 0 if cpu else 1  # noqa: SLF001 - more would be torch's DataParallel
    vars(args)["_setup_devices"] = device  # a cached property


@contextmanager
def first(mine: bool) -> Iterator[None]:
    """Let the ranks for which ``mine`` is true do something before the others."""
    if not mine:
        hvd.barrier()
    try:
        yield
    finally:
        if mine:
            hvd.barrier()


class HorovodTrainingArguments(TrainingArguments):  # type: ignore[misc]
    """TrainingArguments that know the ranks before there is a Trainer; under mpirun and torchrun no others do."""

    def __post_init__(self) -> None:
        set_rank(self)
        super().__post_init__()

    def main_process_first(self, local: bool = True, desc: str = "work") -> AbstractContextManager[None]:  # noqa: ARG002
        return first((hvd.local_rank() if local else hvd.rank()) == 0)


class HorovodAccelerator(Accelerator):  # type: ignore[misc]
    """Accelerate's Accelerator, whose collectives are ours. A Trainer's own becomes one: see ``HorovodMixin``."""

    averaging: Averaging

    def prepare_optimizer(self, optimizer: Any, device_placement: bool | None = None) -> Any:
        prepared = super().prepare_optimizer(optimizer, device_placement)
        if type(prepared) is AcceleratedOptimizer and hasattr(optimizer, "backward_passes_per_step"):
            prepared.__class__ = _Averaged
            prepared.averaging = self.averaging
        return prepared

    def backward(self, loss: Tensor, **kwargs: Any) -> None:
        """Compute gradients and average them, unless within ``no_sync``."""
        super().backward(loss, **kwargs)
        self.averaging.after_backward()

    def no_sync(self, model: Any) -> AbstractContextManager[None]:  # noqa: ARG002 - of accelerate's interface
        return self.averaging.held_back()

    def gather(self, tensor: Any) -> Any:
        """Return the rows of all ranks; a number becomes a row."""
        return recursively_apply(_rows, tensor, error_on_other_type=True) if hvd.size() > 1 else tensor

    def gather_for_metrics(self, input_data: Any, use_gather_object: bool = False) -> Any:
        """Return the rows, or the objects, of all ranks without those that only fill up the last batch."""
        if hvd.size() == 1 or not (use_gather_object or _has_others(input_data)):
            return super().gather_for_metrics(input_data)
        every = [each for part in hvd.allgather_object(input_data) for each in part]
        state = self.gradient_state
        return every[: state.remainder] if state.end_of_dataloader and state.remainder > 0 else every

    def pad_across_processes(self, tensor: Any, dim: int = 0, pad_index: int = 0, pad_first: bool = False) -> Any:
        """Make tensors as long as the longest rank's in one dimension."""
        fill = partial(_padded, dim=dim, value=pad_index, first=pad_first)
        return recursively_apply(fill, tensor, error_on_other_type=True)

    def reduce(self, tensor: Any, reduction: str = "sum", scale: float = 1.0) -> Any:
        ops = {"sum": hvd.Sum, "mean": hvd.Average}
        if reduction not in ops:
            raise ValueError(f"reduction={reduction!r} is not available: use sum or mean.")
        return recursively_apply(lambda one: hvd.allreduce(one, op=ops[reduction]) * scale, tensor)

    def wait_for_everyone(self) -> None:
        hvd.barrier()

    def main_process_first(self) -> AbstractContextManager[None]:
        return first(hvd.rank() == 0)

    def local_main_process_first(self) -> AbstractContextManager[None]:
        return first(hvd.local_rank() == 0)


class _Averaged(AcceleratedOptimizer):  # type: ignore[misc]
    """Accelerate's optimizer around a DistributedOptimizer: its gradients are averaged before it steps."""

    averaging: Averaging

    def step(self, closure: Any = None) -> None:
        if not self.gradient_state.sync_gradients:
            return
        self.averaging.before_step(self.optimizer)
        with self.averaging.stepping(self.optimizer):
            super().step(closure)


class HorovodCallback(TrainerCallback):  # type: ignore[misc]
    """At the start of training all ranks get rank 0's model and optimizer, be they new or a checkpoint's."""

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:  # noqa: ARG002
        share(kwargs["model"])
        if kwargs.get("optimizer") is not None:
            share_state(kwargs["optimizer"].optimizer)


class HorovodMixin(_Unknown):  # type: ignore[misc]
    """Before a Trainer's class: ``class Mine(HorovodMixin, Seq2SeqTrainer)``. Every rank makes one, and trains.

    Parameters
    ----------
    distributed_options
        What else ``hvd.DistributedOptimizer`` takes: compression, op, groups ...
    """

    def __init__(self, *args: Any, distributed_options: dict[str, Any] | None = None, **kwargs: Any) -> None:
        self._distributed_options = distributed_options or {}
        super().__init__(*args, **kwargs)
        self.add_callback(HorovodCallback)

    def create_accelerator_and_postprocess(self) -> None:
        """Let accelerate make its accelerator, knowing the ranks, and have it use our collectives."""
        if self.args.distributed_state.distributed_type != DistributedType.NO:
            raise ValueError(
                "These TrainingArguments have set up torch.distributed, by variables of a launcher: "
                "use hvd_kernel.integrations.transformers.HorovodTrainingArguments instead."
            )
        set_rank(self.args)
        if self.args.data_seed is None:
            self.args.data_seed = self.args.seed  # the ranks deal out one and the same order
        super().create_accelerator_and_postprocess()
        self.accelerator.__class__ = HorovodAccelerator
        self.accelerator.averaging = Averaging(lambda: [each.optimizer for each in self.accelerator._optimizers])  # noqa: SLF001
        gather, objects = self.accelerator.gather_for_metrics, self.args.eval_use_gather_object
        self.gather_function = partial(gather, use_gather_object=objects)

    def create_optimizer(self, *args: Any, **kwargs: Any) -> Any:
        """Make the optimizer distributed, once."""
        plain = super().create_optimizer(*args, **kwargs)
        if not hasattr(plain, "backward_passes_per_step") and not isinstance(plain, AcceleratedOptimizer):
            self.optimizer = distributed(plain, self.model, "optimizer", self._distributed_options)
        return self.optimizer

    def _maybe_log_save_evaluate(self, tr_loss: Tensor, *args: Any, **kwargs: Any) -> None:
        if self.control.should_log and self.state.global_step > self._globalstep_last_logged:
            hvd.allreduce_(tr_loss, op=hvd.Average, name="loss")
        super()._maybe_log_save_evaluate(tr_loss, *args, **kwargs)

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """Save on rank 0; in the course of training the others go on when it is written."""
        super().save_model(output_dir, _internal_call)
        if _internal_call:
            hvd.barrier()


class HorovodTrainer(HorovodMixin, Trainer):  # type: ignore[misc]
    """Trainer on our ranks."""


def _rows(tensor: Tensor) -> Tensor:
    return hvd.allgather(tensor if tensor.dim() else tensor.reshape(1))


def _has_others(data: Any) -> bool:
    """Tell whether there is something besides tensors in it."""
    try:
        recursively_apply(lambda tensor: tensor, data, error_on_other_type=True)
    except TypeError:
        return True
    return False


def _padded(tensor: Tensor, dim: int, value: int, first: bool) -> Tensor:
    if not -tensor.dim() <= dim < tensor.dim():
        return tensor
    longest = int(hvd.allreduce(torch.tensor([tensor.shape[dim]]), op=hvd.Max))
    missing = longest - tensor.shape[dim]
    before = [0, 0] * (tensor.dim() - 1 - dim % tensor.dim())  # pad begins with the last dimension
    return torch.nn.functional.pad(tensor, [*before, *((missing, 0) if first else (0, missing))], value=value)
