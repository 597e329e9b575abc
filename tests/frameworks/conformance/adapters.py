"""One adapter per framework and calling convention: how a program makes its arrays, calls an operation and reads the result.

An adapter imports its framework when it is made, on a rank; what it supports is known without.
"""

from __future__ import annotations

import importlib
import pickle
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, ClassVar

import numpy as np
from frameworks.conformance.table import OPS_BY_NAME, Refusal, Row, Value
from hvdtest.cases import COMPLEX, FLOATS, MOVED, REDUCED, WHOLE

from hvd_kernel.core import ops
from hvd_kernel.core.ops import SPLITS_ARE_INT32, SPLITS_ARE_INTEGERS

OPERATIONS = frozenset(
    [
        "allreduce",
        "grouped_allreduce",
        "allgather",
        "grouped_allgather",
        "broadcast",
        "alltoall",
        "reducescatter",
        "grouped_reducescatter",
    ]
)
IN_PLACE = frozenset(("allreduce_", "grouped_allreduce_", "broadcast_"))
WITHOUT_BFLOAT16 = tuple(dtype for dtype in REDUCED if dtype != "bfloat16")


# Errors with a class or words of a frontend's own, by row; None: the call has results there.
Refusals = Mapping[str, tuple[str, str] | None]
UNREDUCED = (  # rows of types without a reduction, and the remedies
    ("bool", "Average", "cast it to float32 for the share of true, or use Sum (or) and Product (and)"),
    ("complex64", "Min", "reduce its real and imaginary parts"),
    ("complex128", "Max", "reduce its real and imaginary parts"),
    ("int32", "Adasum", "cast it to float32"),
    ("float8_e5m2", "Sum", "cast it to float32"),
    *((dtype, op, "cast it to int64") for dtype in ("uint32", "uint64") for op in ("Sum", "Average")),
)
EMPTY_GROUPS = ("grouped_allreduce, nothing", "grouped_allgather, nothing", "grouped_reducescatter, nothing")


class Adapter:
    """The frontend on NumPy arrays; subclasses define the differences."""

    module = "hvd_kernel.numpy"
    dtypes: ClassVar[Sequence[str]] = (*WITHOUT_BFLOAT16, "uint32", "uint64")
    operations: ClassVar[frozenset[str]] = OPERATIONS | IN_PLACE
    options: ClassVar[frozenset[str]] = frozenset()  # beyond those of every frontend: average, compression
    sweeps = True  # also sizes and shapes that differ in the core alone
    own_shapes = True  # results whose shape only the call returns
    empty_arrays = True  # also of no dimension
    strides = True
    differentiates = False
    broadcasts_parameters = False
    refusals: ClassVar[Refusals] = {"alltoall, splits of int64": None}

    def __init__(self) -> None:
        self.hvd = importlib.import_module(self.module)

    @classmethod
    def supports(cls, row: Row, size: int) -> bool:
        operands, options = row.operands(0, size), row.options(0, size)
        return (
            row.operation in cls.operations
            and size >= row.at_least
            and {value.dtype for value in operands} <= set(cls.dtypes)
            and not ({"average", "compression"} & set(options)) - cls.options
            and (cls.sweeps or not row.sweep)
            and (cls.own_shapes or not row.own_shapes)
            and (cls.strides or not row.strided)
            and (cls.empty_arrays or all(value.numbers.ndim and value.numbers.size for value in operands))
        )

    @classmethod
    def refusal(cls, row: Row, size: int) -> Refusal | None:
        """Return the error that a row is to raise with this frontend; None: it has results."""
        if row.refusal is None:
            return None
        if row.name not in cls.refusals:
            return row.refusal(size)
        own = cls.refusals[row.name]
        return own and Refusal(*own)

    # Arrays

    def array(self, value: Value) -> Any:
        """Return an array of the framework, made by its own conversion from the numbers."""
        return np.array(narrow(value), value.dtype)

    def target(self, value: Value) -> Any:
        """Return an array that an operation in place may overwrite."""
        return self.array(value)

    def strided(self, value: Value) -> Any:
        return self.array(Value(value.numbers.T, value.dtype)).T

    def read(self, array: Any) -> tuple[str, np.ndarray]:
        """Return the type and the elements, as numbers or bits that NumPy can compare."""
        assert isinstance(array, np.ndarray), type(array)
        return array.dtype.name, array

    # Calls

    def scope(self) -> AbstractContextManager[Any]:
        """Everything is done inside of this."""
        return nullcontext()

    def call(self, operation: str, operands: list[Any], options: Mapping[str, Any]) -> list[Any]:
        """Return the results; for alltoall the received rows and their counts, or the rows alone."""
        function = self.function(operation, options)
        made = function(operands if operation.startswith("grouped") else operands[0], **self.given(options))
        return list(made) if isinstance(made, (list, tuple)) else [made]

    def function(self, operation: str, options: Mapping[str, Any]) -> Any:
        return getattr(self.hvd, operation)

    def given(self, options: Mapping[str, Any]) -> dict[str, Any]:
        """Return the options in this frontend's words."""
        given = {name: value for name, value in options.items() if name != "splits_dtype"}
        if "op" in given:
            given["op"] = getattr(self.hvd, given["op"]) if given["op"] in OPS_BY_NAME else given["op"]
        if "compression" in given:
            given["compression"] = getattr(self.hvd.Compression, given["compression"])
        if options.get("splits_dtype"):
            given["splits"] = self.array(Value(np.array(given["splits"]), options["splits_dtype"]))
        return given

    def gradients(
        self, operation: str, operands: list[Any], options: Mapping[str, Any], weights: list[Any]
    ) -> list[list[Any]]:
        """Return the gradients of the operands, by each method of a program: of the results times the weights."""
        raise NotImplementedError

    def broadcast_parameters(self, parameters: dict[str, Any], root: int) -> dict[str, Any]:
        """Return the parameters by name, with the values of the root: the same objects, where they can be written to."""
        self.hvd.broadcast_parameters(parameters, root)
        return parameters

    def begin(self, value: Value) -> Callable[[], Any] | None:
        """Start a sum, and return the function that waits for its result; None if the frontend waits in the call."""
        return None

    def meant(self, error: Exception) -> tuple[str, str]:
        """Return class and message of an error; the expected ones, if the framework raises its own."""
        return type(error).__name__, str(error)


class Core(Adapter):
    """Functions of the core that frontends without own operations use."""

    operations = OPERATIONS
    sweeps = False

    def function(self, operation: str, options: Mapping[str, Any]) -> Any:
        return getattr(ops, operation)


class Torch(Adapter):
    module = "hvd_kernel.torch"
    dtypes = (*REDUCED, *MOVED)
    options = frozenset(("average", "compression"))
    differentiates = True
    broadcasts_parameters = True
    refusals: ClassVar[Refusals] = {
        **{
            f"allreduce, {dtype} {op}": ("ValueError", f"is not supported: {cast}, or use another reduction than {op}")
            for dtype, op, cast in UNREDUCED
        },
        "alltoall, splits a matrix": ("ValueError", "alltoall expects a 1D splits tensor"),
        "alltoall, splits fractions": None,  # cut off, as in Horovod
        "alltoall, splits of float32": ("ValueError", "alltoall expects splits to contain 32-bit integer elements."),
        "alltoall, splits of int64": ("ValueError", "alltoall expects splits to contain 32-bit integer elements."),
        "allgather, a scalar": ("IndexError", "tuple index out of range"),
    }

    def array(self, value: Value) -> Any:
        import torch

        return torch.from_numpy(np.ascontiguousarray(narrow(value)).reshape(value.numbers.shape)).to(
            getattr(torch, value.dtype)
        )

    def read(self, array: Any) -> tuple[str, np.ndarray]:
        import torch

        dtype = str(array.dtype).removeprefix("torch.")
        assert isinstance(array, torch.Tensor), type(array)
        if dtype in MOVED:
            whole = {1: torch.uint8, 4: torch.int32, 8: torch.int64}[array.element_size()]
            return dtype, array.view(whole).numpy()
        return dtype, (array.float() if dtype == "bfloat16" else array.contiguous()).numpy()

    def gradients(
        self, operation: str, operands: list[Any], options: Mapping[str, Any], weights: list[Any]
    ) -> list[list[Any]]:
        operands = [operand.requires_grad_() for operand in operands]
        results = self.call(operation, operands, options)
        sum((result * weight).sum() for result, weight in zip(results, weights, strict=False)).backward()
        return [[operand.grad for operand in operands]]


class TorchAsync(Torch):
    """Every operation in flight until it is waited for."""

    differentiates = False
    options = frozenset(("average",))

    def call(self, operation: str, operands: list[Any], options: Mapping[str, Any]) -> list[Any]:
        made = self.hvd.synchronize(self.start(operation, operands, options))
        return list(made) if isinstance(made, (list, tuple)) else [made]

    def start(self, operation: str, operands: list[Any], options: Mapping[str, Any]) -> int:
        """Return the handle of an operation."""
        name = operation.rstrip("_")
        start = getattr(self.hvd, f"{name}_async{operation[len(name) :]}")
        given = operands if operation.startswith("grouped") else operands[0]
        handle: int = start(given, **self.given(options))
        return handle

    def begin(self, value: Value) -> Callable[[], Any]:
        handle = self.hvd.allreduce_async(self.array(value), name="begun", op=self.hvd.Sum)
        return lambda: self.hvd.synchronize(handle)


class Tensorflow(Adapter):
    """In eager mode, by the functions that gradients are made of; without an operator, by the public ones."""

    module = "hvd_kernel.tensorflow"
    dtypes = (*REDUCED, "uint32", "uint64")
    operations = OPERATIONS | {"broadcast_"}
    options = frozenset(("average", "compression"))
    sweeps = False
    strides = False
    differentiates = True
    broadcasts_parameters = True
    refusals: ClassVar[Refusals] = {
        **{
            f"allreduce, {dtype} {op}": ("ValueError", f"allreduce of {dtype} with op {op} is not available")
            for dtype, op, _ in UNREDUCED
        },
        "alltoall, splits a matrix": ("ValueError", "must be a vector: the rows for each rank"),
        "alltoall, splits fractions": ("ValueError", SPLITS_ARE_INTEGERS.format(dtype="float32")),
        "alltoall, splits of int64": None,
    }

    def array(self, value: Value) -> Any:
        import tensorflow as tf

        return tf.cast(tf.constant(narrow(value)), value.dtype)

    def target(self, value: Value) -> Any:
        import tensorflow as tf

        return tf.Variable(self.array(value))

    def read(self, array: Any) -> tuple[str, np.ndarray]:
        import tensorflow as tf

        array = tf.convert_to_tensor(array)
        dtype = array.dtype.name
        return dtype, (tf.cast(array, tf.float32) if dtype == "bfloat16" else array).numpy()

    def call(self, operation: str, operands: list[Any], options: Mapping[str, Any]) -> list[Any]:
        if operation == "broadcast_":
            return self.hvd.broadcast_(operands, **self.given(options))
        return super().call(operation, operands, options)

    def broadcast_parameters(self, parameters: dict[str, Any], root: int) -> dict[str, Any]:
        self.hvd.broadcast_variables(list(parameters.values()), root_rank=root)
        return parameters

    def gradients(
        self, operation: str, operands: list[Any], options: Mapping[str, Any], weights: list[Any]
    ) -> list[list[Any]]:
        import tensorflow as tf

        def step() -> list[Any]:
            with tf.GradientTape() as tape:
                tape.watch(operands)
                results = self.call(operation, operands, options)
                # In a graph the number of rows is unknown, on all ranks alike.
                own = [
                    weight[: tf.shape(r)[0]] if weight.ndim else weight
                    for r, weight in zip(results, weights, strict=False)
                ]
                loss = [tf.reduce_sum(result * weight) for result, weight in zip(results, own, strict=False)]
            found: list[Any] = tape.gradient(loss, operands)
            return found

        return [step(), tf.function(step)()]

    def function(self, operation: str, options: Mapping[str, Any]) -> Any:
        from hvd_kernel.tensorflow import mpi_ops

        inner = getattr(mpi_ops, f"_{operation}", None) or getattr(mpi_ops, operation)
        public = getattr(self.hvd, operation, inner)
        return inner if "op" in options and not {"average", "compression"} & set(options) else public

    def meant(self, error: Exception) -> tuple[str, str]:
        import tensorflow as tf

        from hvd_kernel.tensorflow.library import translated

        if isinstance(error, tf.errors.InvalidArgumentError):
            assert not isinstance(error, ValueError) or str(pickle.loads(pickle.dumps(error))) == str(error)
            return "ValueError", str(error)
        meant = translated(error)
        assert "{{" not in str(meant)
        return type(meant).__name__, str(meant)


class Jax(Adapter):
    """Outside of programs."""

    module = "hvd_kernel.jax"
    # Without jax_enable_x64 there are no types of 64 bits.
    dtypes = (
        *("uint8", "int8", "uint16", "int16", "int32", "float16", "bfloat16", "float32", "complex64", "bool"),
        *("uint32", "float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz"),
    )
    operations = OPERATIONS | {"grouped_broadcast"}
    options = frozenset(("compression",))
    sweeps = False
    strides = False
    broadcasts_parameters = True
    refusals: ClassVar[Refusals] = {
        "alltoall, splits of int64": None,
        "alltoall, uneven": ("ValueError", "in a program, and without splits, rows must divide"),
        "allgather, a scalar": ("ValueError", "allgather needs an array of at least one dimension; use x[None]"),
        "reducescatter, a scalar": (
            "ValueError",
            "reducescatter needs an array of at least one dimension; use x[None]",
        ),
        **dict.fromkeys(EMPTY_GROUPS),
    }

    def array(self, value: Value) -> Any:
        import jax.numpy as jnp

        return jnp.asarray(narrow(value)).astype(value.dtype)

    def read(self, array: Any) -> tuple[str, np.ndarray]:
        import jax

        assert isinstance(array, jax.Array), type(array)
        dtype = str(array.dtype)
        numbers = np.asarray(array)
        narrow_floats = dtype.startswith(("bfloat", "float8"))
        return dtype, numbers.astype(np.float32) if narrow_floats else numbers

    def call(self, operation: str, operands: list[Any], options: Mapping[str, Any]) -> list[Any]:
        import jax

        made: list[Any] = jax.block_until_ready(super().call(operation, operands, options))
        return made

    def broadcast_parameters(self, parameters: dict[str, Any], root: int) -> dict[str, Any]:
        made: dict[str, Any] = self.hvd.broadcast_parameters(parameters, root)
        return made

    def meant(self, error: Exception) -> tuple[str, str]:
        meant = self.hvd.translated(error)
        return type(meant).__name__, str(meant)


class JaxJit(Jax):
    """Compiled into a program."""

    own_shapes = False
    refusals: ClassVar[Refusals] = {
        **Jax.refusals,
        **{
            f"alltoall, splits {wrong}": ("ValueError", "use it outside of jit, or equal shares")
            for wrong in ("too large", "too many", "negative", "a matrix", "fractions", "of float32", "of int64")
        },
    }

    def call(self, operation: str, operands: list[Any], options: Mapping[str, Any]) -> list[Any]:
        import jax

        function = self.function(operation, options)
        given = self.given(options)
        grouped = operation.startswith("grouped")
        program = jax.jit(lambda *values: function(list(values) if grouped else values[0], **given))
        made = jax.block_until_ready(program(*operands))
        return list(made) if isinstance(made, (list, tuple)) else [made]


class Mxnet(Adapter):
    """NDArrays, which have no type without elements or dimensions."""

    module = "hvd_kernel.mxnet"
    dtypes = ("uint8", "int8", "int32", "int64", "float16", "float32", "float64", "bool")
    options = frozenset(("average",))
    sweeps = False
    empty_arrays = False
    strides = False
    broadcasts_parameters = True
    refusals: ClassVar[Refusals] = {
        "alltoall, splits of float32": ("ValueError", SPLITS_ARE_INT32.format(dtype="float32")),
        "grouped_allreduce, nothing": None,
    }

    def array(self, value: Value) -> Any:
        import mxnet as mx

        return mx.nd.array(narrow(value), dtype=value.dtype)

    def read(self, array: Any) -> tuple[str, np.ndarray]:
        import mxnet as mx

        assert isinstance(array, mx.nd.NDArray), type(array)
        return np.dtype(array.dtype).name, array.asnumpy()

    def call(self, operation: str, operands: list[Any], options: Mapping[str, Any]) -> list[Any]:
        made = super().call(operation, operands, options)
        for array in made:
            array.wait_to_read()
        return made

    def meant(self, error: Exception) -> tuple[str, str]:
        import mxnet as mx

        from hvd_kernel.mxnet.library import MxnetArgumentError

        if isinstance(error, MxnetArgumentError):
            assert isinstance(error, mx.MXNetError)
            assert isinstance(error, ValueError)
            return "ValueError", str(error)
        return type(error).__name__, str(error)


class MxnetNumpy(Mxnet):
    """Arrays of ``mxnet.numpy``."""

    empty_arrays = True

    def scope(self) -> AbstractContextManager[Any]:
        import mxnet as mx

        return mx.util.np_shape(True)

    def array(self, value: Value) -> Any:
        import mxnet as mx

        return mx.np.array(narrow(value), dtype=value.dtype)

    def call(self, operation: str, operands: list[Any], options: Mapping[str, Any]) -> list[Any]:
        made = super().call(operation, operands, options)
        for array in made[:1] if operation == "alltoall" else made:  # the counts of rows are an NDArray
            assert type(array).__module__ == "mxnet.numpy", type(array)
        return made


class Keras(Adapter):
    """Values of NumPy, which are returned as tensors of the backend."""

    module = "hvd_kernel.keras"
    dtypes = ("uint8", "int8", "int16", "int32", "float16", "float32", "bool")
    operations = frozenset(("allreduce", "allgather", "broadcast", "reducescatter"))
    options = frozenset(("average",))
    sweeps = False
    strides = False
    refusals: ClassVar[Refusals] = {}

    @classmethod
    def supports(cls, row: Row, size: int) -> bool:
        scales = row.operation == "reducescatter" and "prescale_factor" in row.options(0, size)
        return not scales and super().supports(row, size)  # as in Horovod

    def read(self, array: Any) -> tuple[str, np.ndarray]:
        numbers = np.asarray(array)
        return numbers.dtype.name, numbers

    def call(self, operation: str, operands: list[Any], options: Mapping[str, Any]) -> list[Any]:
        from hvd_kernel.keras.flavour import BACKEND, is_tensor

        made = super().call(operation, operands, options)
        for result in made:
            assert is_tensor(result), type(result)
            assert BACKEND == "jax" or isinstance(result.numpy(), np.ndarray | np.generic)  # a scalar of TensorFlow
        return made

    def meant(self, error: Exception) -> tuple[str, str]:
        from hvd_kernel.keras.flavour import BACKEND

        if BACKEND == "tensorflow" and isinstance(error, ValueError):
            import tensorflow as tf

            assert isinstance(error, tf.errors.InvalidArgumentError), error
            return "ValueError", str(error)
        return type(error).__name__, str(error)


def narrow(value: Value) -> np.ndarray:
    """Return the numbers in a type that a framework rounds once: the core divides 16-bit sums in float32."""
    if value.dtype in {"float16", "bfloat16"} and value.numbers.dtype == np.float64:
        return value.numbers.astype(np.float32)
    if value.dtype in (*WHOLE, *FLOATS[2:], *COMPLEX, "float16", "bool", "uint32", "uint64"):
        return value.numbers.astype(value.dtype)
    return value.numbers.astype(np.float32)


ADAPTERS: dict[str, type[Adapter]] = {
    "core": Core,
    "numpy": Adapter,
    "torch": Torch,
    "torch, async": TorchAsync,
    "tensorflow": Tensorflow,
    "jax": Jax,
    "jax, jit": JaxJit,
    "mxnet": Mxnet,
    "mxnet, numpy": MxnetNumpy,
    "keras": Keras,
}
