"""Operations on NDArrays: values of every type, in place and not, errors, process sets, names."""

from __future__ import annotations

from typing import Any

import pytest
from hvdtest.launch import RankPool

from hvd_kernel.core.ops import SPLITS_ARE_A_VECTOR, SPLITS_ARE_INT32, SPLITS_ARE_INTEGERS

pytestmark = [pytest.mark.nightly, pytest.mark.mp]

NUMBERS = ("uint8", "int8", "int32", "int64", "float16", "float32", "float64")


def plain(value: Any) -> Any:
    return [plain(each) for each in value] if isinstance(value, (list, tuple)) else value.asnumpy().tolist()


def reductions() -> dict[str, Any]:
    import mxnet as mx

    import hvd_kernel.mxnet as hvd

    hvd.init()
    rank = hvd.rank()
    mine = mx.nd.array([1.0, 4.0]) + rank
    return {
        "average": plain(hvd.allreduce(mine)),
        "said": [plain(hvd.allreduce(mine, average)) for average in (True, False)],
        **{
            name: plain(hvd.allreduce(mine, op=op))
            for name, op in (("sum", hvd.Sum), ("min", hvd.Min), ("max", hvd.Max), ("product", hvd.Product))
        },
        "integers": plain(hvd.allreduce(mx.nd.array([1, -4], dtype="int32") + rank)),
        "scaled": plain(hvd.allreduce(mine, prescale_factor=2.0, postscale_factor=0.5)),
        "group": plain(hvd.grouped_allreduce([mine, mx.nd.array([2], dtype="int64") * rank], op=hvd.Sum)),
        "no group": hvd.grouped_allreduce([]),
        "untouched": plain(mine),
    }


def test_reductions(mx_ranks: RankPool) -> None:
    both = {
        "average": [1.5, 4.5],
        "said": [[1.5, 4.5], [3.0, 9.0]],
        "sum": [3.0, 9.0],
        "min": [1.0, 4.0],
        "max": [2.0, 5.0],
        "product": [2.0, 20.0],
        "integers": [1, -3],
        "scaled": [1.5, 4.5],
        "group": [[3.0, 9.0], [2]],
        "no group": [],
    }
    assert mx_ranks.run(reductions) == [both | {"untouched": [1.0 + rank, 4.0 + rank]} for rank in range(2)]


def in_place() -> dict[str, Any]:
    import mxnet as mx

    import hvd_kernel.mxnet as hvd

    hvd.init()
    rank = hvd.rank()
    one, two, three = (mx.nd.array([1.0, 2.0]) * (rank + 1) for _ in range(3))
    rows = mx.nd.zeros((2, 2))
    assert hvd.allreduce_(one) is one
    pair = [two, mx.nd.array([rank], dtype="int32")]
    assert hvd.grouped_allreduce_(pair, op=hvd.Sum)[0] is two
    assert hvd.broadcast_(three, root_rank=1) is three
    rows[:] = rank
    hvd.grouped_allreduce_([rows[0:1], rows[1:2]], op=hvd.Sum)  # of the same memory
    hvd.allreduce_(rows, op=hvd.Sum)
    return {"one": plain(one), "pair": plain(pair), "broadcast": plain(three), "rows": plain(rows)}


def test_in_place(mx_ranks: RankPool) -> None:
    want = {
        "one": [1.5, 3.0],
        "pair": [[3.0, 6.0], [1]],
        "broadcast": [2.0, 4.0],
        "rows": [[2.0, 2.0], [2.0, 2.0]],
    }
    assert mx_ranks.run(in_place) == [want, want]


def every_type(name: str) -> list[Any]:
    import mxnet as mx

    import hvd_kernel.mxnet as hvd

    hvd.init()
    mine = mx.nd.array([1 + hvd.rank(), 0], dtype=name)
    moved = [
        hvd.allgather(mine),
        hvd.broadcast(mine, 1),
        hvd.alltoall(mine),
        *hvd.grouped_allgather([mine, mx.nd.array([hvd.rank()], dtype="int32")]),
    ]
    made = [hvd.allreduce(mine, op=hvd.Sum), hvd.reducescatter(mine, op=hvd.Sum)]
    assert [each.dtype.__name__.rstrip("_") for each in moved + made] == [name] * 4 + ["int32"] + [name] * 2
    return plain([each.astype("float64") for each in moved + made])


@pytest.mark.parametrize("name", [*NUMBERS, "bool"])
def test_every_type(mx_ranks: RankPool, name: str) -> None:
    def ours(rank: int) -> list[Any]:
        two, three = (1.0, 1.0) if name == "bool" else (2.0, 3.0)
        moved = [[1.0, 0.0, two, 0.0], [two, 0.0], [[1.0, two], [0.0, 0.0]][rank], [1.0, 0.0, two, 0.0], [0.0, 1.0]]
        return [*moved, [three, 0.0], [[three], [0.0]][rank]]

    assert mx_ranks.run(every_type, name) == [ours(0), ours(1)]


def moved_rows() -> dict[str, Any]:
    import mxnet as mx

    import hvd_kernel.mxnet as hvd

    hvd.init()
    rank = hvd.rank()
    rows = mx.nd.arange(4) + 10 * rank
    sent = hvd.alltoall(rows, splits=[1, 2] if rank else mx.nd.array([3, 1], dtype="int32"))
    none = hvd.alltoall(rows, splits=[0, 4])[0]
    return {
        "allgather": plain(hvd.allgather(mx.nd.ones((rank + 1, 2)) * rank)),
        "group": plain(hvd.grouped_allgather([mx.nd.ones((rank + 1,)), mx.nd.array([rank])])),
        "alltoall": plain(sent),
        "received": sent[1].dtype.__name__,
        "none": [list(none.shape), plain(none)],
        "equal": plain(hvd.alltoall(rows)),
        "reducescatter": plain(hvd.reducescatter(mx.nd.arange(5), op=hvd.Sum)),
        "no rows": list(hvd.reducescatter(mx.nd.ones((1, 3)), op=hvd.Sum).shape),
        "reducescatters": plain(hvd.grouped_reducescatter([mx.nd.arange(3), mx.nd.ones((2, 2)) * rank])),
    }


def test_moved_rows(mx_ranks: RankPool) -> None:
    every = {"allgather": [[0, 0], [1, 1], [1, 1]], "group": [[1.0, 1.0, 1.0], [0.0, 1.0]], "received": "int32"}
    first = {
        "alltoall": [[0, 1, 2, 10], [3, 1]],
        "none": [[0], []],
        "equal": [0, 1, 10, 11],
        "reducescatter": [0, 2, 4],
        "no rows": [1, 3],
        "reducescatters": [[0.0, 1.0], [[0.5, 0.5]]],
    }
    second = {
        "alltoall": [[3, 11, 12], [1, 2]],
        "none": [[8], [0, 1, 2, 3, 10, 11, 12, 13]],
        "equal": [2, 3, 12, 13],
        "reducescatter": [6, 8],
        "no rows": [0, 3],
        "reducescatters": [[2.0], [[0.5, 0.5]]],
    }
    assert mx_ranks.run(moved_rows) == [every | first, every | second]


def numpy_arrays() -> dict[str, Any]:
    import mxnet as mx

    import hvd_kernel.mxnet as hvd

    hvd.init()
    mine = mx.np.array([1.0, 2.0]) * (hvd.rank() + 1)
    made = [
        hvd.allreduce(mine),
        hvd.allgather(mine),
        hvd.broadcast(mine, 0),
        hvd.reducescatter(mine),
        hvd.alltoall(mine),
    ]
    with mx.util.np_shape(True):
        scalar = hvd.allreduce(mx.np.array(3.0))
        empty = hvd.allgather(mx.np.ones((2 * hvd.rank(), 1)))
    return {
        "kinds": {type(each).__module__ for each in made} == {"mxnet.numpy"},
        "values": plain([*made, scalar, empty]),
    }


def test_arrays_of_mxnets_numpy(mx_ranks: RankPool) -> None:
    def ours(rank: int) -> dict[str, Any]:
        share, sent = [[1.5], [3.0]][rank], [[1.0, 2.0], [2.0, 4.0]][rank]
        values = [[1.5, 3.0], [1.0, 2.0, 2.0, 4.0], [1.0, 2.0], share, sent, 3.0, [[1.0], [1.0]]]
        return {"kinds": True, "values": values}

    assert mx_ranks.run(numpy_arrays) == [ours(0), ours(1)]


def wrong_calls() -> list[list[Any]]:
    import mxnet as mx

    import hvd_kernel.mxnet as hvd

    hvd.init()
    rank = hvd.rank()
    calls = {
        "shape": lambda: hvd.allreduce(mx.nd.zeros((2 + rank,))),
        "type": lambda: hvd.allreduce(mx.nd.zeros((2,), dtype=["float32", "int32"][rank])),
        "root": lambda: hvd.broadcast(mx.nd.zeros((2,)), rank),
        "factor": lambda: hvd.allreduce(mx.nd.zeros((2,)), prescale_factor=1.0 + rank),
        "gather": lambda: hvd.allgather(mx.nd.zeros((2, 2 + rank))),
        "splits": lambda: hvd.alltoall(mx.nd.zeros((2,)), splits=[2, 1]),
        "uneven": lambda: hvd.alltoall(mx.nd.zeros((3,))),
        "splits of float32": lambda: hvd.alltoall(mx.nd.zeros((2,)), splits=mx.nd.array([1, 1])),
        "list of floats": lambda: hvd.alltoall(mx.nd.zeros((2,)), splits=[0.5, 1.5]),
        "matrix of splits": lambda: hvd.alltoall(mx.nd.zeros((2,)), splits=[[1, 1]]),
        "unknown set": lambda: hvd.allreduce(mx.nd.zeros((2,)), process_set=hvd.ProcessSet([0])),
        "unknown set of a trainer": lambda: hvd.DistributedTrainer([], "sgd", process_set=hvd.ProcessSet([0])),
        "outside": lambda: hvd.broadcast(mx.nd.zeros((2,)), 2),
        "bool average": lambda: hvd.allreduce(mx.nd.zeros((2,), dtype="bool")),
        "op": lambda: hvd.allreduce(mx.nd.zeros((2,)), op=9),
        "both": lambda: hvd.allreduce(mx.nd.zeros((2,)), True, op=hvd.Sum),
        "list": lambda: hvd.allreduce([1.0]),
        "sparse": lambda: hvd.allreduce(mx.nd.zeros((2, 2)).tostype("row_sparse")),
        "minimum of rows": lambda: hvd.reducescatter(mx.nd.zeros((2,)), op=hvd.Min),
    }
    told: list[list[Any]] = []
    for name, call in calls.items():
        try:
            call().wait_to_read()
        except Exception as error:
            told.append([name, type(error).__name__, isinstance(error, mx.MXNetError), str(error)])
        assert plain(hvd.allreduce(mx.nd.ones((1,)), op=hvd.Sum)) == [2.0], "the next operation works"
    return told


def test_wrong_calls(mx_ranks: RankPool) -> None:
    later = ("Mismatch", True)
    want = {
        "shape": (*later, "(rank 0: [2]; rank 1: [3])"),
        "type": (*later, "int32"),
        "root": (*later, "1"),
        "factor": (*later, "2"),
        "gather": ("Mismatch", False, "3"),
        "splits": ("MxnetArgumentError", True, "Sum of splits entries is greater than the first dimension of tensor."),
        "uneven": ("MxnetArgumentError", True, "not an even multiple of the number of workers"),
        "splits of float32": ("MxnetArgumentError", True, SPLITS_ARE_INT32.format(dtype="float32")),
        "list of floats": ("MxnetArgumentError", True, SPLITS_ARE_INTEGERS.format(dtype="float64")),
        "matrix of splits": ("MxnetArgumentError", True, SPLITS_ARE_A_VECTOR),
        "unknown set": ("MxnetArgumentError", True, "Allreduce: Process set provided does not exist"),
        "unknown set of a trainer": ("MxnetArgumentError", True, "Process set provided does not exist"),
        "outside": ("MxnetArgumentError", True, "invalid root rank 2"),
        "bool average": ("MxnetArgumentError", True, "bool is not supported by Average"),
        "op": ("MxnetArgumentError", True, "op=9 does not exist"),
        "both": ("MxnetArgumentError", True, "supersedes average"),
        "list": ("TypeError", False, "takes NDArrays, not list"),
        "sparse": ("MxnetArgumentError", True, "use tostype('default')"),
        "minimum of rows": ("HorovodInternalError", False, "only supports AVERAGE and SUM"),
    }
    for rank in mx_ranks.run(wrong_calls):
        assert {name: (kind, mxnets) for name, kind, mxnets, _ in rank} == {
            name: (kind, mxnets) for name, (kind, mxnets, _) in want.items()
        }
        for name, _, _, text in rank:
            assert want[name][2] in text
            assert "hvd_kernel.errors" not in text


def sets() -> list[Any]:
    import mxnet as mx

    import hvd_kernel.mxnet as hvd

    hvd.init(process_sets="dynamic")
    alone = [hvd.add_process_set([rank]) for rank in range(2)]
    own, other = alone[hvd.rank()], alone[1 - hvd.rank()]
    here = mx.nd.array([2.0]) + hvd.rank()
    result = plain([hvd.allreduce(here, process_set=own), hvd.allgather(here, process_set=own)])
    for wrong in (other, hvd.ProcessSet([0, 1])):
        try:
            hvd.allreduce(here, process_set=wrong)
        except ValueError as error:
            result.append(str(error))
    for each in alone:
        hvd.remove_process_set(each)
    hvd.shutdown()
    return result


def test_process_sets(mx_ranks: RankPool) -> None:
    unknown = "Allreduce: Process set provided does not exist, or has not been registered."
    assert mx_ranks.run(sets) == [
        [[2.0 + rank], [2.0 + rank], f"Allreduce: Rank {rank} is not a member of the provided process set.", unknown]
        for rank in range(2)
    ]


def before_and_after() -> list[str]:
    import mxnet as mx

    import hvd_kernel.mxnet as hvd

    hvd.shutdown()
    said = []
    for call in (hvd.rank, lambda: hvd.allreduce(mx.nd.ones((1,))), lambda: hvd.allgather(mx.nd.ones((1,)))):
        try:
            call()
        except (ValueError, hvd.HorovodInternalError) as error:
            said.append(f"{type(error).__name__}: {error}")
    hvd.init()
    assert plain(hvd.allreduce(mx.nd.ones((1,)), op=hvd.Sum)) == [2.0]
    last = hvd.join()
    hvd.barrier()
    return [*said, str(last in {0, 1})]


def test_nothing_works_before_init_and_all_after_a_second_one(mx_ranks: RankPool) -> None:
    kinds = ["NotInitialized", "HorovodInternalError", "HorovodInternalError"]
    told = [f"{kind}: Horovod has not been initialized; use hvd.init()." for kind in kinds]
    assert mx_ranks.run(before_and_after) == [[*told, "True"]] * 2


def objects() -> list[Any]:
    import hvd_kernel.mxnet as hvd

    hvd.init()
    mine = {"rank": hvd.rank()}
    return [hvd.broadcast_object(mine, root_rank=1), hvd.allgather_object(mine["rank"])]


def test_objects(mx_ranks: RankPool) -> None:
    assert mx_ranks.run(objects) == [[{"rank": 1}, [0, 1]]] * 2
