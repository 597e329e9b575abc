"""torch's adapter: tensors, models, optimizers and generators, for code that does not import torch."""

from __future__ import annotations

import gc
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import timedelta
from types import SimpleNamespace
from typing import IO, Any

import cloudpickle
import torch
import torch.distributed

from hvd_kernel.errors import ConfigError
from hvd_kernel.frameworks.adapter import Elements, Flat, FrameworkAdapter, TensorShard
from hvd_kernel.protocol.distributed_tensors import described, is_distributed, layout
from hvd_kernel.torch.optimizer import DistributedOptimizer
from hvd_kernel.torch.wrapping import OptimizerMixin

_PARTS = ("_parameters", "_buffers", "_modules")  # attributes of a module
_STATEFUL = (torch.nn.Module, torch.optim.Optimizer, torch.optim.lr_scheduler.LRScheduler)


_SPARSE = {  # layout -> the methods that return the parts of a sparse tensor, which has no ``nbytes``
    torch.sparse_coo: ("_indices", "_values"),
    torch.sparse_csr: ("crow_indices", "col_indices", "values"),
    torch.sparse_bsr: ("crow_indices", "col_indices", "values"),
    torch.sparse_csc: ("ccol_indices", "row_indices", "values"),
    torch.sparse_bsc: ("ccol_indices", "row_indices", "values"),
}


class TorchAdapter(FrameworkAdapter):
    """Adapter for torch."""

    def facts(self, value: Any) -> Mapping[str, str | int] | None:
        """Return the shape, and the dtype with a device other than the CPU; of a model, if it has DTensors."""
        if issubclass(type(value), torch.nn.Module):
            return self._facts_of_module(value)
        if not issubclass(type(value), torch.Tensor):
            return None
        device = "" if value.device.type == "cpu" else f" {value.device}"
        plain = {"shape": str(tuple(value.shape)), "dtype": _name(value.dtype) + device}
        return plain | _placed([value])

    def _facts_of_module(self, module: Any) -> Mapping[str, str | int] | None:
        tensors = {id(tensor): tensor for tensor in self._parameters(module)}.values()
        placed = _placed(tensors)
        if not placed:
            return None
        dtypes = sorted({_name(tensor.dtype) for tensor in tensors})
        count = sum(tensor.numel() for tensor in tensors)
        return {"shape": f"{count:,} parameters", "dtype": ", ".join(dtypes)} | placed

    def _parameters(self, module: Any) -> Iterator[torch.Tensor]:
        """Return the parameters of a module and its modules without running its code."""
        parts = self.parts(module)
        yield from (tensor for tensor in parts.get("_parameters", {}).values() if tensor is not None)
        for inner in parts.get("_modules", {}).values():
            yield from self._parameters(inner)

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
        if not is_distributed(value):
            return None
        mesh, placements = value.device_mesh, value.placements
        place = mesh.get_coordinate()
        spread = [dimension for dimension, placement in enumerate(placements) if not placement.is_replicate()]
        key = (
            "outside the mesh" if place is None else ",".join(f"{dimension}:{place[dimension]}" for dimension in spread)
        )
        return TensorShard(described(value), key, _local(value))

    def state(self, value: Any) -> Any:
        """Return the ``state_dict`` of a model, an optimizer or a scheduler, or the state of a generator."""
        if isinstance(value, torch.Generator):
            return value.get_state()
        state = value.state_dict() if issubclass(type(value), _STATEFUL) else value
        return dict(state) if issubclass(type(value), torch.nn.Module) else state

    def nbytes(self, value: Any) -> int | None:
        """Return the size of a tensor in bytes, of a DTensor that of this rank's shard."""
        if not issubclass(type(value), torch.Tensor):
            return None
        value = _local(value)
        parts = _SPARSE.get(value.layout)
        return int(value.nbytes if parts is None else sum(getattr(value, part)().nbytes for part in parts))

    def written(self) -> Iterable[type]:
        """Return torch's classes of devices and dtypes."""
        return torch.device, torch.dtype

    def parts(self, value: Any) -> Mapping[str, Mapping[str, Any]]:
        """Return a module's parameters, buffers and modules."""
        if not issubclass(type(value), torch.nn.Module):
            return {}
        attributes = object.__getattribute__(value, "__dict__")
        return {name: dict(attributes[name]) for name in _PARTS if type(attributes.get(name)) is dict}

    def seeds(self) -> Mapping[str, Any]:
        """Return the states of the CPU's generator and, if CUDA is in use, of the device's."""
        states = {"torch": torch.get_rng_state()}
        return states | ({"torch.cuda": torch.cuda.get_rng_state()} if _on_gpu() else {})

    def reduced(self, value: Any) -> Any:
        """Pickle a distributed optimizer as its plain optimizer and the arguments that wrap it again.

        Raises
        ------
        TypeError
            The optimizer has groups, which all ranks must create together.
        """
        return (_wrap_again, value.plain_and_arguments()) if isinstance(value, OptimizerMixin) else NotImplemented

    def write(self, values: Mapping[str, Any], file: IO[bytes], pickler: type[Any]) -> None:
        """Write a file of ``torch.save``."""
        module = SimpleNamespace(  # the attributes of a pickle module that torch.save uses
            Pickler=pickler, dump=cloudpickle.dump, dumps=cloudpickle.dumps, __name__="cloudpickle"
        )
        torch.save(dict(values), file, pickle_module=module, pickle_protocol=5)

    def read(self, file: IO[bytes], device: Any) -> dict[str, Any]:
        """Read a file of ``write``; move tensors of a GPU to ``device``."""

        def move(storage: Any, location: str) -> Any:
            return storage.to(device=device) if location.startswith("cuda") else storage

        loaded: dict[str, Any] = torch.load(file, map_location=move, weights_only=False)
        return loaded

    def device(self, local_rank: int, named: Sequence[int]) -> torch.device:
        """Return this rank's device: a GPU by local rank, or the CPU without GPUs."""
        count = torch.cuda.device_count()
        if count < len(named):
            names = ",".join(map(str, named))
            raise ConfigError(
                f"--gpus {names}: torch {torch.__version__} sees {count} of these {len(named)} devices: install a "
                "torch with CUDA that fits the driver (`nvidia-smi` says which), or leave --gpus out."
            )
        return torch.device("cuda", local_rank % count) if count else torch.device("cpu")

    def device_uuid(self, local_rank: int) -> str | None:
        """Return the UUID of this rank's GPU; None before torch uses CUDA, as the query would initialize it."""
        if not _on_gpu():
            return None
        device = local_rank % torch.cuda.device_count()
        return str(torch.cuda.get_device_properties(device).uuid)

    def gradient_bytes(self, value: Any) -> int:
        """Return the size of the gradients of a module or a tensor."""
        parameters = value.parameters() if issubclass(type(value), torch.nn.Module) else [value]
        leaves = [param for param in parameters if issubclass(type(param), torch.Tensor) and param.is_leaf]
        return sum(self.nbytes(leaf.grad) or 0 for leaf in leaves if leaf.grad is not None)

    def alive_bytes(self) -> Mapping[str, int]:
        """Return the size of the storages of all tensors that Python knows, of gradients, parameters and optimizers."""
        objects = gc.get_objects()
        tensors = [candidate for candidate in objects if issubclass(type(candidate), torch.Tensor)]
        gradients = [tensor.grad for tensor in tensors if tensor.is_leaf and tensor.grad is not None]
        optimizers = [candidate for candidate in objects if issubclass(type(candidate), torch.optim.Optimizer)]
        states = [tensor for optimizer in optimizers for tensor in _state_of(optimizer)]
        parameters = [tensor for tensor in tensors if isinstance(tensor, torch.nn.Parameter)]  # DTensors too
        parts = {
            "tensors": [*tensors, *gradients, *states],
            "gradients": gradients,
            "optimizer state": states,
            "parameters": [param for param in parameters if param.requires_grad],
        }
        return {name: _storage_bytes(part) for name, part in parts.items()}

    def free_unused(self) -> None:
        """Empty the cache of the GPU's allocator, if CUDA is in use."""
        if _on_gpu():
            torch.cuda.empty_cache()

    def store(self, host: str, port: int, patience_s: float) -> Any:
        """Return a client of the store of torchrun's agent."""
        distributed: Any = torch.distributed  # its stubs hide the store
        return distributed.TCPStore(host, port, is_master=False, timeout=timedelta(seconds=patience_s))


def _local(tensor: torch.Tensor) -> torch.Tensor:
    """Return this rank's shard of a DTensor, without autograd history; another tensor as it is."""
    if not is_distributed(tensor):
        return tensor
    with torch.no_grad():
        shard: torch.Tensor = tensor.to_local()  # type: ignore[attr-defined] # of DTensor
    return shard


def _placed(tensors: Iterable[torch.Tensor]) -> dict[str, str | int]:
    """Return the layouts of the DTensors among tensors, and the bytes of all on this rank; {} without DTensors."""
    layouts = list(dict.fromkeys(layout(tensor) for tensor in tensors if is_distributed(tensor)))
    if not layouts:
        return {}
    more = f" and {len(layouts) - 1} more" if len(layouts) > 1 else ""
    return {"value": layouts[0] + more, "local": sum(int(_local(tensor).nbytes) for tensor in tensors)}


def _storage_bytes(tensors: Iterable[torch.Tensor]) -> int:
    """Return the size of the distinct storages of tensors; those of torch.compile's fake tensors have no memory."""
    storages = [tensor.untyped_storage() for tensor in map(_local, tensors) if tensor.layout is torch.strided]
    real = [storage for storage in storages if storage.device.type != "meta"]
    return sum({storage.data_ptr(): int(storage.nbytes()) for storage in real}.values())


def _state_of(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    """Return the tensors in an optimizer's ``state``, a mapping for each parameter."""
    states = [state for state in vars(optimizer).get("state", {}).values() if isinstance(state, Mapping)]
    return [value for state in states for value in state.values() if issubclass(type(value), torch.Tensor)]


def _on_gpu() -> bool:
    return bool(torch.cuda.is_initialized())  # type: ignore[no-untyped-call]


def _name(dtype: torch.dtype) -> str:
    return f"{dtype}".removeprefix("torch.")


def _numbers(flat: torch.Tensor) -> Flat:
    return (torch.view_as_real(flat).reshape(-1) if flat.is_complex() else flat).double().cpu().numpy()


def _wrap_again(base: type[torch.optim.Optimizer], state: dict[str, Any], arguments: dict[str, Any]) -> Any:
    plain = base.__new__(base)
    plain.__setstate__(state)
    return DistributedOptimizer(plain, **arguments)


ADAPTER = TorchAdapter()
