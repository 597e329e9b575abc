"""The usual allreduce is one Python function that calls one function of the core: held by counts, not by time."""

from __future__ import annotations

import importlib
import resource
import sys
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import Any

import numpy as np
import pytest
from hvdtest.launch import RankPool
from hvdtest.pools import layouts

pytestmark = pytest.mark.mp

CALLS = 200
layout = layouts((2, "shm"), nightly=((1, "auto"), (2, "tcp"), (4, "shm")))


def usual(frontend: str) -> tuple[Any, dict[str, Callable[[], Any]]]:
    """A frontend, and its usual calls, by the functions that each may call besides its own."""
    hvd: Any = importlib.import_module(frontend)
    hvd.init()
    ones: Any = np.ones if frontend.endswith("numpy") else importlib.import_module("torch").ones
    tensor = ones(1024)
    how = {"name": "fast", "op": hvd.Max}
    return hvd, {
        "in place": lambda: hvd.allreduce_(tensor, **how),
        "without a name": lambda: hvd.allreduce_(tensor, op=hvd.Max),
        "average": lambda: hvd.allreduce_(tensor),
        "a new one": lambda: hvd.allreduce(tensor, **how),
    }


def calls_of(body: Callable[[], Any]) -> list[str]:
    """Every function of Python or C that is called."""
    seen: list[str] = []

    def note(frame: FrameType, event: str, arg: Any) -> None:
        if event == "call":
            seen.append(frame.f_code.co_name)
        elif event == "c_call":
            seen.append(arg.__name__)

    sys.setprofile(note)
    try:
        body()
    finally:
        sys.setprofile(None)
    return seen[1:-1]  # without the body's own, and what ends this


def one_function_each(frontend: str) -> None:
    hvd, bodies = usual(frontend)
    for body in bodies.values():
        body()  # the first call asks the core for its function
    ours = ["allreduce_", "allreduce_at_once"]
    for kind in ("in place", "without a name", "average"):
        assert calls_of(bodies[kind]) == ours, (kind, calls_of(bodies[kind]))
    is_plain = ["is_plain"] if frontend.endswith("torch") else []
    found = [name for name in calls_of(bodies["a new one"]) if name != "empty_like"]  # which the core calls
    assert found == ["allreduce", *is_plain, "allreduce_at_once"], found
    hvd.barrier()


def a_group_is_one_call(frontend: str) -> None:
    """A group of any number of tensors equals single calls, in one function; unusual calls use the general path."""
    hvd, _ = usual(frontend)
    size = hvd.size()
    array: Any = np.asarray if frontend.endswith("numpy") else importlib.import_module("torch").tensor
    group = [array([1.0, 2.0]), array([[3], [4]]), array(5.0), array([1.0, 2.0])]
    expected = [np.asarray(one).copy() * size for one in group]

    def in_place() -> list[Any]:
        done: list[Any] = hvd.grouped_allreduce_(group, name="group", op=hvd.Sum)
        return done

    done = in_place()
    assert [mine is its for mine, its in zip(done, group, strict=True)] == [True] * 4
    for times in (1, size):
        assert all((np.asarray(one) == times * its).all() for one, its in zip(group, expected, strict=True))
        found = calls_of(in_place)
        assert found == ["in_place", "grouped_allreduce_", "grouped_allreduce_at_once"][1:], found
    one = hvd.allreduce(group[0], name="group", op=hvd.Max)  # the same name, and no group
    assert (np.asarray(one) == np.asarray(group[0])).all()
    new = hvd.grouped_allreduce(tuple(group), name="group", op=hvd.Max)
    assert all((np.asarray(a) == np.asarray(b)).all() for a, b in zip(new, group, strict=True))
    assert not any(a is b for a, b in zip(new, group, strict=True))
    with pytest.raises(ValueError, match="needs at least one tensor"):
        hvd.grouped_allreduce_([], op=hvd.Max)
    flags = [array([True, False]), array([2.0])]  # bool is not usual
    assert np.asarray(hvd.grouped_allreduce_(flags, op=hvd.Max)[0]).tolist() == [True, False]
    if frontend.endswith("torch"):
        hvd.grouped_allreduce_(iter(group), name="group", op=hvd.Max)
        handle = hvd.grouped_allreduce_async_(group, name="group", op=hvd.Max)
        done = hvd.synchronize(handle)
        assert isinstance(done, tuple)
        assert [mine is its for mine, its in zip(done, group, strict=True)] == [True] * 4
        new = hvd.synchronize(hvd.grouped_allreduce_async(group, name="group", op=hvd.Max))
        assert all((np.asarray(a) == np.asarray(b)).all() for a, b in zip(new, group, strict=True))
    hvd.barrier()


def nothing_is_kept(frontend: str) -> None:
    """Neither Python's objects nor handles pile up, and one rank hands nothing over to another thread."""
    hvd, bodies = usual(frontend)
    kept_by(hvd, bodies["in place"])
    both: Any = importlib.import_module(frontend.replace("hvd_kernel.", "")).ones
    group = [both(100), both(200)]
    kept_by(hvd, lambda: hvd.grouped_allreduce_(group, name="fast", op=hvd.Max))
    if frontend.endswith("torch"):
        ones = importlib.import_module("torch").ones(1024)
        kept_by(hvd, lambda: hvd.synchronize(hvd.allreduce_async_(ones, name="fast", op=hvd.Max)))


def kept_by(hvd: Any, body: Callable[[], Any]) -> None:
    handles = importlib.import_module("hvd_kernel.core.handles")
    for _ in range(CALLS):
        body()
    before, live = sys.getallocatedblocks(), len(handles._live)
    slept = resource.getrusage(resource.RUSAGE_SELF).ru_nvcsw
    for _ in range(CALLS):
        body()
    more = sys.getallocatedblocks() - before
    slept = resource.getrusage(resource.RUSAGE_SELF).ru_nvcsw - slept
    assert more < CALLS / 10, more
    assert len(handles._live) == live
    assert hvd.size() > 1 or slept < CALLS / 10, f"one rank waits for nobody and wakes nobody, and slept {slept} times"
    hvd.barrier()


def declined_all_the_same(frontend: str) -> None:
    """Unusual calls give the results of the general path."""
    hvd, _ = usual(frontend)
    size = hvd.size()
    array: Any = np.arange(12.0).reshape(3, 4)
    if frontend.endswith("torch"):
        array = importlib.import_module("torch").from_numpy(array)
    turned = array.T if frontend.endswith("numpy") else array.t()
    assert (np.asarray(hvd.allreduce(turned, op=hvd.Sum)) == size * np.arange(12.0).reshape(3, 4).T).all()
    hvd.allreduce_(turned, op=hvd.Sum)
    assert (np.asarray(array) == size * np.arange(12.0).reshape(3, 4)).all()
    scaled = hvd.allreduce(array, op=hvd.Sum, prescale_factor=0.5, postscale_factor=4.0)
    assert (np.asarray(scaled) == 2.0 * size * np.asarray(array)).all()
    assert (np.asarray(hvd.allreduce(array, op=hvd.Product, prescale_factor=1)) == np.asarray(array) ** size).all()


def begun_and_waited_for() -> None:
    """Two Python functions, two of the core; the tensor is returned, and no reference is kept."""
    torch = importlib.import_module("torch")
    hvd, _ = usual("hvd_kernel.torch")
    live = importlib.import_module("hvd_kernel.core.handles")._live
    tensor, known = torch.ones(1024), len(live)

    def both() -> Any:
        return hvd.synchronize(hvd.allreduce_async_(tensor, name="begun", op=hvd.Max))

    assert both() is tensor
    for _ in range(2):  # the second one knows its request
        found = calls_of(both)
        assert found == ["allreduce_async_", "allreduce_begun", "synchronize", "get", "len", "fast_synchronize"], found
    handle = hvd.allreduce_async(tensor, name="a new one", op=hvd.Sum)
    assert len(live) == known + 1
    result = hvd.synchronize(handle)
    assert result is not tensor
    assert result.tolist() == [float(hvd.size())] * 1024
    assert len(live) == known
    assert hvd.synchronize(handle) is None


def begun_is_polled_and_told_once() -> None:
    """A fast handle behaves like a general one: poll, errors, and that the tensor is held."""
    torch = importlib.import_module("torch")
    hvd, _ = usual("hvd_kernel.torch")
    errors = importlib.import_module("hvd_kernel.errors")
    handle = hvd.allreduce_async_(torch.full((2048,), float(hvd.rank() + 1)), name="nobody else holds it", op=hvd.Max)
    while not hvd.poll(handle):
        time.sleep(0.001)
    assert hvd.synchronize(handle).tolist() == [float(hvd.size())] * 2048
    with pytest.raises(ValueError, match="was not created or has been cleared"):
        hvd.poll(handle)
    handle = hvd.allreduce_async_(torch.ones(3 + hvd.rank()), name="shapes", op=hvd.Max)
    if hvd.size() > 1:
        with pytest.raises(errors.Mismatch, match="shapes"):
            hvd.synchronize(handle)
    hvd.synchronize(handle)  # of size 1: the result; else nothing is known of it
    assert hvd.synchronize(handle) is None
    several = [hvd.allreduce_async_(torch.full((4,), float(i)), name=f"several.{i}", op=hvd.Sum) for i in range(50)]
    for i, each in reversed(list(enumerate(several))):
        assert hvd.synchronize(each).tolist() == [float(i * hvd.size())] * 4
    hvd.barrier()


def handles_of_the_engine_before_are_gone() -> None:
    """Handle numbers restart after a new ``init``: earlier handles are forgotten."""
    torch = importlib.import_module("torch")
    hvd, _ = usual("hvd_kernel.torch")
    live = importlib.import_module("hvd_kernel.core.handles")._live
    old = hvd.allreduce_async_(torch.ones(4), name="of before", op=hvd.Sum)
    assert old in live
    hvd.shutdown()
    hvd.init()
    new = hvd.allreduce_async_(torch.full((4,), 2.0), name="of now", op=hvd.Sum)
    assert list(live) == [new]
    assert hvd.synchronize(new).tolist() == [2.0 * hvd.size()] * 4


def negative_is_seen() -> None:
    """torch's views with a negative bit, whose elements differ from the memory, are detected."""
    torch = importlib.import_module("torch")
    hvd: Any = importlib.import_module("hvd_kernel.torch")
    hvd.init()
    view = torch.tensor([2.0 + 3.0j]).conj().imag
    assert view.is_neg()
    assert view.is_contiguous()
    assert hvd.allreduce(view, op=hvd.Max).tolist() == [-3.0]
    assert hvd.allreduce_(view, op=hvd.Max).tolist() == [-3.0]
    assert hvd.allreduce(torch.tensor([1.0 + 2.0j]).conj(), op=hvd.Sum).tolist() == [hvd.size() * (1.0 - 2.0j)]


def autograd_sees_it() -> None:
    torch = importlib.import_module("torch")
    hvd: Any = importlib.import_module("hvd_kernel.torch")
    hvd.init()
    weights = torch.ones(3, requires_grad=True)
    hvd.allreduce(weights, op=hvd.Sum).sum().backward()
    assert weights.grad.tolist() == [float(hvd.size())] * 3
    with torch.no_grad():
        assert not hvd.allreduce(weights, op=hvd.Sum).requires_grad


def two_threads(frontend: str) -> None:
    """Both threads get the core's complete answer, whichever is first."""
    hvd, _ = usual(frontend)
    wrong: list[Any] = []

    def sums(name: str, count: int) -> None:
        for i in range(50):
            array = np.full(count, float(i), np.float32)
            given = array if frontend.endswith("numpy") else importlib.import_module("torch").from_numpy(array)
            hvd.allreduce_(given, name=name, op=hvd.Sum)
            wrong.extend([name, i, array] if (array != i * hvd.size()).any() else [])

    other = threading.Thread(target=sums, args=("other", 5))
    other.start()
    sums("one", 9)
    other.join()
    assert not wrong, wrong


def it_is_seen_to_wait(frontend: str) -> None:
    """A thread waiting in it is distinguished from one in its own code, in the first call as well."""
    importlib.import_module("hvd_kernel.torch.async_ops").fast.reset()
    importlib.import_module("hvd_kernel.numpy.ops")._fast.reset()
    pending: Any = importlib.import_module("hvd_kernel.core.call_stack")
    engine = importlib.import_module("hvd_kernel.core.session").engine
    hvd, bodies = usual(frontend)
    if hvd.size() == 1:
        return  # no rank to wait for
    hvd.barrier()
    if hvd.rank() == 0:
        seen: list[str] = []

        def look() -> None:
            while not (found := pending.waiting_for(engine())):
                time.sleep(0.001)
            seen.append(found)
            hvd.broadcast_object("come", 0)

        threading.Thread(target=look).start()
        bodies["in place"]()
        assert seen == ["allreduce.fast"]
    else:
        assert not pending.waiting_for(engine())
        hvd.broadcast_object("come", 0)
        bodies["in place"]()
    hvd.barrier()


@pytest.mark.parametrize("frontend", ["hvd_kernel.numpy", "hvd_kernel.torch"])
@pytest.mark.parametrize(
    "check",
    [
        one_function_each,
        a_group_is_one_call,
        nothing_is_kept,
        declined_all_the_same,
        two_threads,
        it_is_seen_to_wait,
    ],
)
def test_usual_call_is_one_call_of_the_core(ranks: RankPool, frontend: str, check: Callable[[str], None]) -> None:
    ranks.run(check, frontend)


@pytest.mark.parametrize(
    "check",
    [
        negative_is_seen,
        autograd_sees_it,
        begun_and_waited_for,
        begun_is_polled_and_told_once,
        handles_of_the_engine_before_are_gone,
    ],
)
def test_features_of_torch_alone(ranks: RankPool, check: Callable[[], None]) -> None:
    ranks.run(check)
