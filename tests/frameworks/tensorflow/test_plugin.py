"""The TensorFlow plugin between its two neighbours: a TensorFlow that it cannot use, a core that answers within its call.

Terms.
  table  the core's C table, made here: what native/c_api/hvd_core.h allows and real ranks do only now and then
"""

from __future__ import annotations

import ctypes
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hvdtest.environments import environment, output_of, run

pytestmark = [pytest.mark.nightly, pytest.mark.mp]

# A TensorFlow whose std::function is another one: what runs `done` does nothing with ours.
DEAF = "void TF_RunAsyncOpKernelDoneCallback(void* done) { (void)done; }"
REFUSED = """
try:
    import hvd_kernel.tensorflow
except ImportError as error:
    print(error)
import hvd_kernel.numpy as hvd
import numpy as np
hvd.init()
print(hvd.allreduce(np.ones(1), op=hvd.Sum).tolist())
"""


def test_a_tensorflow_with_other_callbacks_is_refused_at_import(tmp_path: Path) -> None:
    """``done`` is copied as a std::function, so the plugin tries one when it is loaded; the rest of the package works."""
    source, library = tmp_path / "deaf.c", tmp_path / "deaf.so"
    source.write_text(DEAF)
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, source], check=True)
    refusal, *rest = output_of(environment("tf221"), REFUSED, LD_PRELOAD=str(library)).splitlines()
    assert "libhvd_tf.so cannot be used with TensorFlow 2.21.0: " in refusal
    assert refusal.endswith(
        "this TensorFlow was built with another C++ library (its std::function differs from libstdc++'s): use the wheels "
        "from PyPI"
    )
    assert rest == ["[1.0]"]


INT32, SIZE, POINTER, TEXT = ctypes.c_int32, ctypes.c_size_t, ctypes.c_void_p, ctypes.c_char_p


class Tensor(ctypes.Structure):
    """DLTensor."""

    _fields_ = (
        ("data", POINTER),
        ("device", INT32 * 2),
        ("ndim", INT32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", POINTER),
        ("byte_offset", ctypes.c_uint64),
    )

    def nbytes(self) -> int:
        count = 1
        for extent in self.shape[: self.ndim]:
            count *= extent
        return count * self.bits // 8


class Outcome(ctypes.Structure):
    """hvd_outcome."""

    _fields_ = (
        ("struct_size", SIZE),
        ("code", INT32),
        ("rank", INT32),
        ("text", TEXT),
        ("outputs_count", SIZE),
        ("outputs", POINTER),
        ("sizes_count", SIZE),
        ("sizes", POINTER),
        ("number", ctypes.c_int64),
        ("event", POINTER),
    )


DONE = ctypes.CFUNCTYPE(None, POINTER, ctypes.POINTER(Outcome))


class Request(ctypes.Structure):
    """hvd_request."""

    _fields_ = (
        ("struct_size", SIZE),
        ("kind", INT32),
        ("set", INT32),
        ("name", TEXT),
        ("count", SIZE),
        ("inputs", ctypes.POINTER(Tensor)),
        ("outputs", ctypes.POINTER(Tensor)),
        ("op", INT32),
        ("root", INT32),
        ("prescale", ctypes.c_double),
        ("postscale", ctypes.c_double),
        ("splits_count", SIZE),
        ("splits", POINTER),
        ("stream", POINTER),
        ("done", DONE),
        ("context", POINTER),
    )


OF_ENGINE, OF_SET = ctypes.CFUNCTYPE(INT32, POINTER), ctypes.CFUNCTYPE(INT32, POINTER, INT32)
ENQUEUE = ctypes.CFUNCTYPE(INT32, POINTER, ctypes.POINTER(Request), POINTER, SIZE)


class Table(ctypes.Structure):
    """The beginning of hvd_core."""

    _fields_ = (
        ("struct_size", SIZE),
        ("version", TEXT),
        ("current", ctypes.CFUNCTYPE(POINTER)),
        ("release", ctypes.CFUNCTYPE(None, POINTER)),
        *((name, OF_ENGINE) for name in ("rank", "size", "local_rank", "local_size", "cross_rank", "cross_size")),
        *((name, OF_SET) for name in ("set_size", "set_rank")),
        ("set_ranks", POINTER),
        ("enqueue", ENQUEUE),
    )


def table(enqueue: Callable[[Any, Any, Any, int], int]) -> Table:
    """A core of one rank."""
    one, two = OF_ENGINE(lambda _: 1), OF_SET(lambda _, __: 1)
    return Table(
        ctypes.sizeof(Table),
        b"fake",
        ctypes.CFUNCTYPE(POINTER)(lambda: 1),
        ctypes.CFUNCTYPE(None, POINTER)(lambda _: None),
        *[one] * 6,
        *[two] * 2,
        None,
        ENQUEUE(enqueue),
    )


def ends_within_the_call() -> dict[str, Any]:
    """Operations of a core that calls ``done`` before enqueue() returns, with success or a failure, or accepts none."""
    import tensorflow as tf
    from frameworks.tensorflow.test_plugin import Outcome, table

    from hvd_kernel.tensorflow import library
    from hvd_kernel.tensorflow.mpi_ops import _allreduce

    asked: list[str] = []

    def enqueue(_engine: Any, request: Any, text: Any, size: int) -> int:
        given = request.contents
        name = given.name.decode()
        asked.append(name)
        if "refused" in name:
            ctypes.memmove(text, b"no such thing\0", min(size, 14))
            return 1
        for place in range(given.count):
            to, of = given.outputs[place], given.inputs[place]
            ctypes.memmove(to.data, of.data, of.nbytes())
        failed = "fails" in name
        outcome = Outcome(ctypes.sizeof(Outcome), 4 if failed else 0, 1 if failed else -1, b"it died" * failed)
        given.done(given.context, ctypes.byref(outcome))
        return 0

    made = table(enqueue)
    library.ops()
    library._plugin().hvd_tf_set_core(ctypes.byref(made))

    def reduced(x: Any, name: str) -> Any:
        return _allreduce(x, name=name)

    @tf.function
    def chain(x: Any) -> Any:
        for step in range(20):
            x = reduced(x, f"step.{step}")
        return x

    @tf.function
    def beside(x: Any) -> Any:
        return [reduced(x * float(n), f"beside.{n}") for n in range(20)]

    @tf.function
    def loop(x: Any) -> Any:
        for _ in tf.range(50):
            x = reduced(x + 1.0, "loop")
        return x

    def error_of(name: str, how: Callable[..., Any]) -> list[str]:
        try:
            how(tf.constant([1.0]), name)
        except tf.errors.OpError as error:
            return [type(error).__name__, type(library.translated(error)).__name__]
        return []

    x = tf.constant([1.0, 2.0])
    function = tf.function(reduced)
    return {
        "eager": [reduced(x, "again").numpy().tolist() for _ in range(3)],
        "chain": [chain(x).numpy().tolist() for _ in range(3)],
        "beside": [float(each[1]) for each in beside(x)],
        "loop": loop(x).numpy().tolist(),
        "fails": [error_of("fails", reduced), error_of("fails", function)],
        "refused": [error_of("refused", reduced), error_of("refused", function)],
        "after": function(x, "after").numpy().tolist(),
        "asked": len(asked),
    }


def test_operations_that_end_before_enqueue_returns() -> None:
    (found,) = run(environment("tf221"), ends_within_the_call, np=1, MALLOC_PERTURB_="165")
    assert found == {
        "eager": [[1.0, 2.0]] * 3,
        "chain": [[1.0, 2.0]] * 3,
        "beside": [2.0 * n for n in range(20)],
        "loop": [51.0, 52.0],
        "fails": [["AbortedError", "RankDied"]] * 2,
        "refused": [["InvalidArgumentError", "InvalidArgumentError"]] * 2,
        "after": [1.0, 2.0],
        "asked": 3 + 60 + 20 + 50 + 4 + 1,
    }
