"""torch's adapter: tensors, models, optimizers and generators, for everything that has not heard of torch."""

from __future__ import annotations

import gc
from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from types import SimpleNamespace
from typing import IO, Any

import cloudpickle
import torch
import torch.distributed

from hvd_kernel.errors import ConfigError
from hvd_kernel.frameworks.adapter import Elements, Flat, FrameworkAdapter, TensorShard
from hvd_kernel.protocol import serialization
from hvd_kernel.torch.optimizer import DistributedOptimizer
from hvd_kernel.torch.training.wrapping import OptimizerMixin

_KEPT = ("_parameters", "_buffers", "_modules")  # where a module keeps its parts
_STATEFUL = (torch.nn.Module, torch.optim.Optimizer, torch.optim.lr_scheduler.LRScheduler)


_SPARSE = {  # layout -> the methods that return what such a tensor consists of; it has no ``nbytes``
    torch.sparse_coo: ("_indices", "_values"),
    torch.sparse_csr: ("crow_indices", "col_indices", "values"),
    torch.sparse_bsr: ("crow_indices", "col_indices", "values"),
    torch.sparse_csc: ("ccol_indices", "row_indices", "values"),
    torch.sparse_bsc: ("ccol_indices", "row_indices", "values"),
}


class TorchAdapter(FrameworkAdapter):
    """torch's."""

    def facts(self, value: Any) -> Mapping[str, str] | None:
        """Return the shape, and the type with the device where that is not the CPU."""
        if not issubclass(type(value), torch.Tensor):
            return None
        device = "" if value.device.type == "cpu" else f" {value.device}"
        return {"shape": str(tuple(value.shape)), "dtype": _name(value.dtype) + device}

    def elements(self, value: Any) -> Elements | None:
        """Return the elements of a strided tensor."""
        if type(value) not in {torch.Tensor, torch.nn.Parameter, torch.nn.Buffer}:
            return None
        if value.layout is not torch.strided or value.is_quantized or value.device.type == "meta":
            return None
        flat = value.detach().resolve_conj().resolve_neg().contiguous().reshape(-1)
        return Elements(
            "tensor",
            _name(value.dtype),
            tuple(value.shape),
            max(1, value.dtype.itemsize),
            len(flat),
            lambda part: flat[part].cpu().view(torch.uint8).numpy(),
            lambda part: _numbers(flat[part]),
        )

    def shard(self, value: Any) -> TensorShard | None:
        """Return the local tensor of a DTensor, with its coordinates along the dimensions that shard it."""
        tensors = serialization.loaded("torch.distributed.tensor")  # not while another thread imports it
        if tensors is None or not isinstance(value, tensors.DTensor):
            return None
        mesh, placements = value.device_mesh, value.placements
        place = mesh.get_coordinate()
        spread = [dimension for dimension, placement in enumerate(placements) if not placement.is_replicate()]
        key = (
            "outside the mesh" if place is None else ",".join(f"{dimension}:{place[dimension]}" for dimension in spread)
        )
        kinds = ", ".join(map(str, placements))
        text = f"DTensor {_name(value.dtype)} {tuple(value.shape)} [{kinds}] on {tuple(mesh.shape)}"
        return TensorShard(text, key, value.detach().to_local())

    def state(self, value: Any) -> Any:
        """Return the ``state_dict`` of a model, an optimizer or a scheduler, the state of a generator."""
        if isinstance(value, torch.Generator):
            return value.get_state()
        state = value.state_dict() if issubclass(type(value), _STATEFUL) else value
        return dict(state) if issubclass(type(value), torch.nn.Module) else state

    def nbytes(self, value: Any) -> int | None:
        """Return a tensor's size."""
        if not issubclass(type(value), torch.Tensor):
            return None
        parts = _SPARSE.get(value.layout)
        return int(value.nbytes if parts is None else sum(getattr(value, part)().nbytes for part in parts))

    def written(self) -> Iterable[type]:
        """Return the classes of devices and types."""
        return torch.device, torch.dtype

    def parts(self, value: Any) -> Mapping[str, Mapping[str, Any]]:
        """Return a module's parameters, buffers and modules."""
        if not issubclass(type(value), torch.nn.Module):
            return {}
        own = object.__getattribute__(value, "__dict__")
        return {place: dict(own[place]) for place in _KEPT if type(own.get(place)) is dict}

    def seeds(self) -> Mapping[str, Any]:
        """Return the states of the CPU's generator and, where CUDA is in use, of the device's."""
        states = {"torch": torch.get_rng_state()}
        return states | ({"torch.cuda": torch.cuda.get_rng_state()} if _on_gpu() else {})

    def reduced(self, value: Any) -> Any:
        """Take a distributed optimizer apart: its arguments travel, its hooks and reductions are made there.

        Raises
        ------
        TypeError
            Its gradients travel in groups, which all ranks have to make together.
        """
        return (_wrapped_again, value.apart()) if isinstance(value, OptimizerMixin) else NotImplemented

    def write(self, values: Mapping[str, Any], file: IO[bytes], pickler: type[Any]) -> None:
        """Write a file of ``torch.save``."""
        module = SimpleNamespace(  # what torch.save wants of a pickle module
            Pickler=pickler, dump=cloudpickle.dump, dumps=cloudpickle.dumps, __name__="cloudpickle"
        )
        torch.save(dict(values), file, pickle_module=module, pickle_protocol=5)

    def read(self, file: IO[bytes], device: Any) -> dict[str, Any]:
        """Read it."""

        def mine(storage: Any, location: str) -> Any:
            return storage.to(device=device) if location.startswith("cuda") else storage

        loaded: dict[str, Any] = torch.load(file, map_location=mine, weights_only=False)
        return loaded

    def device(self, local_rank: int, named: Sequence[int]) -> torch.device:
        """Return this rank's turn among the GPUs that torch sees, else the CPU."""
        there = torch.cuda.device_count()
        if there < len(named):
            names = ",".join(map(str, named))
            raise ConfigError(
                f"--gpus {names}: torch {torch.__version__} sees {there} of these {len(named)} devices: install a "
                "torch with CUDA that fits the driver (`nvidia-smi` says which), or leave --gpus out."
            )
        return torch.device("cuda", local_rank % there) if there else torch.device("cpu")

    def device_uuid(self, local_rank: int) -> str | None:
        """Return the UUID of this rank's GPU, once torch has begun with CUDA: to ask before would begin with it."""
        if not _on_gpu():
            return None
        device = local_rank % torch.cuda.device_count()
        return str(torch.cuda.get_device_properties(device).uuid)

    def gradient_bytes(self, value: Any) -> int:
        """Return the size of a module's, or a tensor's, gradients."""
        parameters = value.parameters() if issubclass(type(value), torch.nn.Module) else [value]
        tensors = [each for each in parameters if issubclass(type(each), torch.Tensor) and each.is_leaf]
        return sum(int(each.grad.nbytes) for each in tensors if each.grad is not None)

    def alive_bytes(self) -> Mapping[str, int]:
        """Return the size of the storages of all tensors that Python knows, of their gradients, and of optimizers'."""
        objects = gc.get_objects()
        tensors = [each for each in objects if issubclass(type(each), torch.Tensor)]
        gradients = [each.grad for each in tensors if each.is_leaf and each.grad is not None]
        optimizers = [each for each in objects if issubclass(type(each), torch.optim.Optimizer)]
        states = [each for optimizer in optimizers for each in _state_of(optimizer)]
        whole = _storages([*tensors, *gradients, *states])
        trained = [each for each in tensors if issubclass(type(each), torch.nn.Parameter) and each.requires_grad]
        parts = {
            "gradients": _storages(gradients),
            "optimizer state": _storages(states),
            "parameters": _storages(trained),
        }
        return {"tensors": sum(whole.values())} | {name: sum(each.values()) for name, each in parts.items()}

    def free_unused(self) -> None:
        """Empty the cache of the GPU's allocator, where CUDA is in use."""
        if _on_gpu():
            torch.cuda.empty_cache()

    def store(self, host: str, port: int, patience_s: float) -> Any:
        """Return a client of the store of torchrun's agent."""
        distributed: Any = torch.distributed  # its stubs hide the store
        return distributed.TCPStore(host, port, is_master=False, timeout=timedelta(seconds=patience_s))


def _storages(tensors: Iterable[torch.Tensor]) -> dict[int, int]:
    """Return the bytes of the storages below tensors, by their addresses."""
    strided = [each.untyped_storage() for each in tensors if each.layout is torch.strided]
    return {each.data_ptr(): int(each.nbytes()) for each in strided}


def _state_of(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    """Return the tensors that an optimizer keeps of each parameter, as far as it keeps them in the usual way."""
    kept = [each for each in vars(optimizer).get("state", {}).values() if isinstance(each, Mapping)]
    return [value for each in kept for value in each.values() if issubclass(type(value), torch.Tensor)]


def _on_gpu() -> bool:
    return bool(torch.cuda.is_initialized())  # type: ignore[no-untyped-call]


def _name(dtype: torch.dtype) -> str:
    return f"{dtype}".removeprefix("torch.")


def _numbers(flat: torch.Tensor) -> Flat:
    return (torch.view_as_real(flat).reshape(-1) if flat.is_complex() else flat).double().cpu().numpy()


def _wrapped_again(base: type[torch.optim.Optimizer], state: dict[str, Any], arguments: dict[str, Any]) -> Any:
    plain = base.__new__(base)
    plain.__setstate__(state)
    return DistributedOptimizer(plain, **arguments)


ADAPTER = TorchAdapter()
