"""Hugging Face's Trainer on our ranks: ``HorovodTrainer``, or ``HorovodMixin`` before another Trainer class.

The Trainer uses accelerate. It receives the size and this rank, so that each rank gets its own batches, but is
configured as not distributed: collectives go through ``HorovodAccelerator``. Accelerate keeps this state in variables
of the process; they have our values only while a method of our Trainer runs.

Terms.
  filler  rows that accelerate adds to the last batches, so that all ranks have as many batches of the same size
"""
# ruff: noqa: D102 - accelerate's and the Trainer's interface, documented there

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from hvd_kernel.integrations import needed

needed("transformers", "transformers")  # before torch, which takes seconds

import torch  # noqa: E402
from accelerate import Accelerator, PartialState  # noqa: E402
from accelerate.optimizer import AcceleratedOptimizer  # noqa: E402
from accelerate.state import AcceleratorState, GradientState  # noqa: E402
from accelerate.utils import DistributedType, find_batch_size, recursively_apply  # noqa: E402
from torch import Tensor  # noqa: E402
from transformers import Trainer, TrainerCallback, TrainingArguments  # noqa: E402

import hvd_kernel.torch as hvd  # noqa: E402
from hvd_kernel.frameworks import accelerate_state  # noqa: E402
from hvd_kernel.integrations.averaging import Averaging, distributed, share, share_state  # noqa: E402
from hvd_kernel.settings import torchrun  # noqa: E402

if TYPE_CHECKING:  # the next class in the MRO is the Trainer's
    from typing import Any as _Unknown
else:
    _Unknown = object


class ProcessState:
    """One Trainer's values of the state that accelerate keeps per process; they are in effect within ``current()``."""

    def __init__(self) -> None:
        self._values: dict[Any, dict[str, Any]] = {kind: {} for kind in (PartialState, AcceleratorState, GradientState)}

    def current(self) -> AbstractContextManager[None]:
        """Put these values into effect for a block."""
        return accelerate_state.replaced(self._values)

    def set_rank(self, args: Any) -> None:
        """Set rank, size and device in TrainingArguments and in accelerate's state."""
        hvd.init()
        cpu = bool(args.use_cpu) or not torch.cuda.is_available()
        device = torch.device("cpu") if cpu else torch.device("cuda", hvd.local_rank() % torch.cuda.device_count())
        if not cpu:
            torch.cuda.set_device(device)
        self._values[AcceleratorState].clear()
        self._values[PartialState].update(  # its constructor would look for torch.distributed's variables
            _cpu=cpu,
            backend=None,
            debug=False,
            device=device,
            distributed_type=DistributedType.NO,
            num_processes=hvd.size(),
            process_index=hvd.rank(),
            local_process_index=hvd.local_rank(),
        )
        with self.current():
            args.distributed_state = PartialState()
        args._n_gpu = 0 if cpu else 1  # noqa: SLF001 - more would be torch's DataParallel
        vars(args)["_setup_devices"] = device  # a cached property


class HorovodAcceleratorState(AcceleratorState):  # type: ignore[misc]
    """State of an accelerator that knows its rank also outside of ``ProcessState.current``.

    Properties of AcceleratorState read the process's PartialState, which may belong to another Trainer then.
    """

    use_distributed = PartialState.use_distributed
    is_main_process = PartialState.is_main_process
    is_local_main_process = PartialState.is_local_main_process
    is_last_process = PartialState.is_last_process
    print = PartialState.print

    def wait_for_everyone(self) -> None:
        hvd.barrier()


@contextmanager
def first(is_first: bool) -> Iterator[None]:
    """Run a block on the ranks with ``is_first`` before it runs on all other ranks."""
    if not is_first:
        hvd.barrier()
    try:
        yield
    finally:
        if is_first:
            hvd.barrier()


class HorovodTrainingArguments(TrainingArguments):  # type: ignore[misc]
    """TrainingArguments that know rank and size before a Trainer exists; needed under mpirun and torchrun."""

    def __post_init__(self) -> None:
        state = ProcessState()
        state.set_rank(self)
        with state.current():
            super().__post_init__()

    def main_process_first(self, local: bool = True, desc: str = "work") -> AbstractContextManager[None]:  # noqa: ARG002
        return first((hvd.local_rank() if local else hvd.rank()) == 0)


class HorovodAccelerator(Accelerator):  # type: ignore[misc]
    """Accelerator with Horovod's collectives. ``HorovodMixin`` changes a Trainer's accelerator into this class."""

    averaging: Averaging
    process_state: ProcessState

    def prepare(self, *args: Any, **kwargs: Any) -> Any:
        with self.process_state.current():
            return super().prepare(*args, **kwargs)

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
        """Return the rows of all ranks; a scalar becomes a row."""
        return recursively_apply(_rows, tensor, error_on_other_type=True) if hvd.size() > 1 else tensor

    def gather_for_metrics(self, input_data: Any, use_gather_object: bool = False) -> Any:
        """Return the rows, or the objects, of all ranks without the filler of the last batch."""
        if hvd.size() == 1 or not (use_gather_object or _has_objects(input_data)):
            return super().gather_for_metrics(input_data)
        objects = [element for part in hvd.allgather_object(input_data) for element in part]
        state = self.gradient_state
        return objects[: state.remainder] if state.end_of_dataloader and state.remainder > 0 else objects

    def pad_across_processes(self, tensor: Any, dim: int = 0, pad_index: int = 0, pad_first: bool = False) -> Any:
        """Pad tensors in one dimension to the length of the longest rank's."""
        fill = partial(_padded, dim=dim, value=pad_index, first=pad_first)
        return recursively_apply(fill, tensor, error_on_other_type=True)

    def reduce(self, tensor: Any, reduction: str = "sum", scale: float = 1.0) -> Any:
        ops = {"sum": hvd.Sum, "mean": hvd.Average}
        if reduction not in ops:
            raise ValueError(f"reduction={reduction!r} is not available: use sum or mean.")
        return recursively_apply(lambda leaf: hvd.allreduce(leaf, op=ops[reduction]) * scale, tensor)

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
    """Broadcasts rank 0's model and optimizer at the start of training, whether new or from a checkpoint."""

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:  # noqa: ARG002
        share(kwargs["model"])
        if kwargs.get("optimizer") is not None:
            share_state(kwargs["optimizer"].optimizer)


def _in_our_state(name: str) -> Callable[..., Any]:
    """Return a method of the mixin that runs the Trainer's method while accelerate's state is this Trainer's."""

    def run(self: Any, *args: Any, **kwargs: Any) -> Any:
        with self._process_state.current():
            return getattr(super(HorovodMixin, self), name)(*args, **kwargs)

    run.__name__ = name
    return run


class HorovodMixin(_Unknown):  # type: ignore[misc]
    """Mixin before a Trainer's class: ``class Mine(HorovodMixin, Seq2SeqTrainer)``. Every rank creates one, and trains.

    Parameters
    ----------
    distributed_options
        Further options of ``hvd.DistributedOptimizer``: compression, op, groups ...
    """

    def __init__(self, *args: Any, distributed_options: dict[str, Any] | None = None, **kwargs: Any) -> None:
        self._distributed_options = distributed_options or {}
        self._process_state = ProcessState()
        with self._process_state.current():
            super().__init__(*args, **kwargs)
        self.add_callback(HorovodCallback)

    train, evaluate, predict = map(_in_our_state, ("train", "evaluate", "predict"))
    get_train_dataloader = _in_our_state("get_train_dataloader")
    get_eval_dataloader = _in_our_state("get_eval_dataloader")
    get_test_dataloader = _in_our_state("get_test_dataloader")

    def create_accelerator_and_postprocess(self) -> None:
        """Create accelerate's accelerator with rank and size set, and change it into a HorovodAccelerator."""
        is_distributed = self.args.distributed_state.distributed_type != DistributedType.NO
        if is_distributed and not torchrun.is_ours(os.environ):
            raise ValueError(
                "These TrainingArguments have set up torch.distributed, by variables of a launcher: "
                "use hvd_kernel.integrations.transformers.HorovodTrainingArguments instead."
            )
        self._process_state.set_rank(self.args)
        if self.args.data_seed is None:
            self.args.data_seed = self.args.seed  # the ranks share out one shuffled order
        with self._process_state.current():
            super().create_accelerator_and_postprocess()
        self.accelerator.__class__ = HorovodAccelerator
        self.accelerator.process_state = self._process_state
        self.accelerator.state.__class__ = HorovodAcceleratorState
        self.accelerator.averaging = Averaging(self._distributed_optimizers)
        gather, objects = self.accelerator.gather_for_metrics, self.args.eval_use_gather_object
        self.gather_function = partial(gather, use_gather_object=objects)

    def _distributed_optimizers(self) -> list[Any]:
        return [wrapper.optimizer for wrapper in self.accelerator._optimizers]  # noqa: SLF001

    def create_optimizer(self, *args: Any, **kwargs: Any) -> Any:
        """Wrap the optimizer as a DistributedOptimizer, once."""
        plain = super().create_optimizer(*args, **kwargs)
        if not hasattr(plain, "backward_passes_per_step") and not isinstance(plain, AcceleratedOptimizer):
            self.optimizer = distributed(plain, self.model, "optimizer", self._distributed_options)
        return self.optimizer

    def _maybe_log_save_evaluate(self, tr_loss: Tensor, *args: Any, **kwargs: Any) -> None:
        if self.control.should_log and self.state.global_step > self._globalstep_last_logged:
            hvd.allreduce_(tr_loss, op=hvd.Average, name="loss")
        super()._maybe_log_save_evaluate(tr_loss, *args, **kwargs)

    def prediction_step(self, model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        """Predict without filler, which would count in the batch's loss; its predictions are dropped later."""
        gradients = self.accelerator.gradient_state
        size = find_batch_size(inputs)
        if gradients.end_of_dataloader and gradients.remainder > 0 and size:
            rows = gradients.remainder - hvd.rank() * size
            if 0 < rows < size:  # a rank with nothing but filler takes part with it: its loss is dropped too
                inputs = _first_rows(inputs, rows, size)
        return super().prediction_step(model, inputs, *args, **kwargs)

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """Save on rank 0; during training the other ranks wait until it is written."""
        with self._process_state.current():
            super().save_model(output_dir, _internal_call)
        if _internal_call:
            hvd.barrier()


class HorovodTrainer(HorovodMixin, Trainer):  # type: ignore[misc]
    """Hugging Face's Trainer on Horovod's ranks."""


def _rows(tensor: Tensor) -> Tensor:
    return hvd.allgather(tensor if tensor.dim() else tensor.reshape(1))


def _first_rows(data: Any, rows: int, size: int) -> Any:
    """Return the first rows of the tensors and lists in a batch that have ``size`` rows."""
    if isinstance(data, Mapping):
        kind: Any = type(data)
        return kind({name: _first_rows(value, rows, size) for name, value in data.items()})
    if isinstance(data, list | tuple) and any(isinstance(value, Tensor | Mapping) for value in data):
        values = [_first_rows(value, rows, size) for value in data]
        return type(data)(*values) if hasattr(data, "_fields") else type(data)(values)
    has_rows = isinstance(data, list | tuple) or (isinstance(data, Tensor) and data.dim() > 0)
    return data[:rows] if has_rows and len(data) == size else data


def _has_objects(data: Any) -> bool:
    """Return whether a structure contains anything besides tensors."""
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
