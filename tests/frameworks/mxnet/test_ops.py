"""Operations on NDArrays beyond the table of frameworks/conformance: arrays of one memory, errors of MXNet's classes, a death."""

from __future__ import annotations

import os
import signal
from typing import Any

import pytest
from hvdtest.environments import Ranks, environment
from hvdtest.launch import RankPool

pytestmark = [pytest.mark.nightly, pytest.mark.mp]


def in_place() -> list[Any]:
    import mxnet as mx

    import hvd_kernel.mxnet as hvd

    hvd.init()
    one = mx.nd.array([1.0, 2.0]) * (hvd.rank() + 1)
    assert hvd.allreduce_(one) is one
    assert hvd.grouped_allreduce_([one], op=hvd.Max)[0] is one
    assert hvd.broadcast_(one, root_rank=1) is one
    rows = mx.nd.ones((2, 2)) * hvd.rank()
    hvd.grouped_allreduce_([rows[0:1], rows[1:2]], op=hvd.Sum)  # of the same memory
    hvd.allreduce_(rows, op=hvd.Sum)
    return [one.asnumpy().tolist(), rows.asnumpy().tolist()]


def test_in_place(mx_ranks: RankPool) -> None:
    assert mx_ranks.run(in_place) == [[[1.5, 3.0], [[2.0, 2.0], [2.0, 2.0]]]] * 2


def wrong_calls() -> list[list[Any]]:
    import mxnet as mx

    import hvd_kernel.mxnet as hvd

    hvd.init()
    rank = hvd.rank()
    calls = {
        "shape": lambda: hvd.allreduce(mx.nd.zeros((2 + rank,))),
        "gather": lambda: hvd.allgather(mx.nd.zeros((2, 2 + rank))),
        "set of a trainer": lambda: hvd.DistributedTrainer([], "sgd", process_set=hvd.ProcessSet([0])),
        "list": lambda: hvd.allreduce([1.0]),
        "sparse": lambda: hvd.allreduce(mx.nd.zeros((2, 2)).tostype("row_sparse")),
    }
    told: list[list[Any]] = []
    for name, call in calls.items():
        try:
            call().wait_to_read()
        except Exception as error:
            told.append([name, type(error).__name__, isinstance(error, mx.MXNetError), str(error)])
        assert hvd.allreduce(mx.nd.ones((1,)), op=hvd.Sum).asnumpy().tolist() == [2.0], "the next operation works"
    return told


def test_errors_are_also_of_mxnets_classes(mx_ranks: RankPool) -> None:
    """Those of operations in MXNet's engine and of arguments; one that waits in the call has our class alone."""
    want = {
        "shape": ("Mismatch", True, "(rank 0: [2]; rank 1: [3])"),
        "gather": ("Mismatch", False, "3"),
        "set of a trainer": ("MxnetArgumentError", True, "Process set provided does not exist"),
        "list": ("TypeError", False, "takes NDArrays, not list"),
        "sparse": ("MxnetArgumentError", True, "use tostype('default')"),
    }
    for rank in mx_ranks.run(wrong_calls):
        assert [(name, kind, mxnets) for name, kind, mxnets, _ in rank] == [
            (name, kind, mxnets) for name, (kind, mxnets, _) in want.items()
        ]
        assert all(want[name][2] in text for name, _, _, text in rank)


def death() -> list[Any]:
    import mxnet as mx

    import hvd_kernel.mxnet as hvd
    from hvd_kernel import errors

    hvd.init()
    hvd.barrier()
    if hvd.rank() == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    results = [hvd.allreduce(mx.nd.ones((4,)) * number, name=str(number)) for number in range(3)]
    told = []
    for result in results:
        try:
            (result + 1).wait_to_read()
        except errors.RankDied as error:
            told.append([isinstance(error, mx.MXNetError), error.rank])
    return [told, mx.nd.ones((1,)).asnumpy().tolist()]


def test_survivors_of_a_death_raise(as_launched: dict[str, str]) -> None:
    with Ranks(environment("mxnet"), 3, **as_launched) as ranks:
        dead = [[[True, 1]] * 3, [1.0]]
        assert ranks.run(death, gone={1: -signal.SIGKILL}) == [dead, None, dead]
