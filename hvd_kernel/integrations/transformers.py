"""Hugging Face's Trainer on our ranks: ``HorovodTrainer``, or ``HorovodMixin`` before another Trainer class.

Accelerate, on which the Trainer stands, gets the number of ranks and its own number among them, so that it gives each
rank its batches, and that it is not distributed by its own means: what travels goes through an accelerator of ours.
Accelerate keeps this in variables of the process; they have our values only while a method of our Trainer runs.

Terms.
  filler  rows that accelerate adds to the last batches, so that all ranks have as many batches of the same size
"""
# ruff: noqa: D102 - accelerate's and the Trainer's interface, documented there

from __future__ import annotations

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
from hvd_kernel.integrations.averaging import Averaging, distributed, share, share_state  # noqa: E402

if TYPE_CHECKING:  # the base class is the Trainer that the mixin stands before
    from typing import Any as _Unknown
else:
    _Unknown = object


class ProcessState:
    """What accelerate keeps for the whole process, of one Trainer: its classes have these values within ``current()``.

    Objects that accelerate makes meanwhile keep them afterwards: an instance of its classes is their dict.
    """

    def __init__(self) -> None:
        self._values: dict[Any, dict[str, Any]] = {kind: {} for kind in (PartialState, AcceleratorState, GradientState)}

    @contextmanager
    def current(self) -> Iterator[None]:
        """Let accelerate work with these values; then it has those from before again, also after an error."""
        before = {kind: kind._shared_state for kind in self._values}  # noqa: SLF001 - accelerate has no public way
        self._use(self._values)
        try:
            yield
        finally:
            self._use(before)

    @staticmethod
    def _use(values: Mapping[Any, dict[str, Any]]) -> None:
        for kind, state in values.items():
            kind._shared_state = state  # noqa: SLF001

    def set_rank(self, args: Any) -> None:
        """Set in TrainingArguments, and in accelerate's state, which rank of how many this is."""
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

    AcceleratorState's own properties read the process's PartialState, which others may have then.
    """

    use_distributed = PartialState.use_distributed
    is_main_process = PartialState.is_main_process
    is_local_main_process = PartialState.is_local_main_process
    is_last_process = PartialState.is_last_process
    print = PartialState.print

    def wait_for_everyone(self) -> None:
        hvd.barrier()


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
        state = ProcessState()
        state.set_rank(self)
        with state.current():
            super().__post_init__()

    def main_process_first(self, local: bool = True, desc: str = "work") -> AbstractContextManager[None]:  # noqa: ARG002
        return first((hvd.local_rank() if local else hvd.rank()) == 0)


class HorovodAccelerator(Accelerator):  # type: ignore[misc]
    """Accelerate's Accelerator, whose collectives are ours. A Trainer's own becomes one: see ``HorovodMixin``."""

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


def _in_our_state(name: str) -> Callable[..., Any]:
    """Make a method of the mixin that runs its Trainer's method while accelerate's state is this Trainer's."""

    def run(self: Any, *args: Any, **kwargs: Any) -> Any:
        with self._process_state.current():
            return getattr(super(HorovodMixin, self), name)(*args, **kwargs)

    run.__name__ = name
    return run


class HorovodMixin(_Unknown):  # type: ignore[misc]
    """Before a Trainer's class: ``class Mine(HorovodMixin, Seq2SeqTrainer)``. Every rank makes one, and trains.

    Parameters
    ----------
    distributed_options
        What else ``hvd.DistributedOptimizer`` takes: compression, op, groups ...
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
        """Let accelerate make its accelerator, knowing the ranks, and have it use our collectives."""
        if self.args.distributed_state.distributed_type != DistributedType.NO:
            raise ValueError(
                "These TrainingArguments have set up torch.distributed, by variables of a launcher: "
                "use hvd_kernel.integrations.transformers.HorovodTrainingArguments instead."
            )
        self._process_state.set_rank(self.args)
        if self.args.data_seed is None:
            self.args.data_seed = self.args.seed  # the ranks deal out one and the same order
        with self._process_state.current():
            super().create_accelerator_and_postprocess()
        self.accelerator.__class__ = HorovodAccelerator
        self.accelerator.process_state = self._process_state
        self.accelerator.state.__class__ = HorovodAcceleratorState
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

    def prediction_step(self, model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        """Predict without filler, which would count in the loss of the batch; predictions of it are dropped later."""
        gradients = self.accelerator.gradient_state
        size = find_batch_size(inputs)
        if gradients.end_of_dataloader and gradients.remainder > 0 and size:
            rows = gradients.remainder - hvd.rank() * size
            if 0 < rows < size:  # a rank with nothing but filler takes part with it: its loss is dropped too
                inputs = _first_rows(inputs, rows, size)
        return super().prediction_step(model, inputs, *args, **kwargs)

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """Save on rank 0; in the course of training the others go on when it is written."""
        with self._process_state.current():
            super().save_model(output_dir, _internal_call)
        if _internal_call:
            hvd.barrier()


class HorovodTrainer(HorovodMixin, Trainer):  # type: ignore[misc]
    """Trainer on our ranks."""


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
