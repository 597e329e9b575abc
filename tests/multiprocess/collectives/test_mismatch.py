"""What the ranks disagree about is told to every rank, in Horovod's words; the engine works on."""

from __future__ import annotations

import pytest
from hvdtest.exact import raises, same
from hvdtest.launch import RankPool
from hvdtest.pools import layouts

pytestmark = pytest.mark.mp


layout = layouts((2, "shm"), (3, "tcp"))


def disagreements() -> list[str]:
    import torch

    import hvd_kernel.torch as hvd
    from hvd_kernel.errors import Mismatch

    odd = hvd.rank() == 1
    f, i = torch.ones(4), torch.ones(4, dtype=torch.int32)
    cases = [
        ("Mismatched data types: One rank had type ", hvd.allreduce, (i if odd else f,), {}),
        ("Mismatched ALLREDUCE tensor shapes: One rank sent a tensor of shape [", hvd.allreduce, (f[: 4 - odd],), {}),
        ("Mismatched reduction operation: ", hvd.allreduce, (f,), {"op": hvd.Sum if odd else hvd.Average}),
        (
            "Mismatched prescale and/or postscale factors: ",
            hvd.allreduce,
            (f,),
            {"prescale_factor": 2.0 if odd else 1.0},
        ),
        ("Mismatched BROADCAST root ranks: One rank specified root rank ", hvd.broadcast, (f, int(odd)), {}),
        ("Mismatched BROADCAST tensor shapes", hvd.broadcast, (f[: 4 - odd], 0), {}),
        ("Mismatched ALLGATHER tensor shapes", hvd.allgather, (torch.ones(2, 3 + odd),), {}),
        ("Mismatched ALLGATHER tensor shapes", hvd.allgather, (torch.ones(2, 3) if odd else torch.ones(2),), {}),
        ("Mismatched data types", hvd.allgather, (i if odd else f,), {}),
        ("Mismatched", hvd.grouped_allreduce, ([f, i if odd else f],), {}),
        ("Mismatched", hvd.grouped_allreduce, ([f] * (2 + odd),), {}),
        ("Mismatched data types", hvd.reducescatter, (i if odd else f,), {}),
        ("Mismatched REDUCESCATTER tensor shapes", hvd.reducescatter, (torch.ones(4, 2 + odd),), {}),
        ("Mismatched reduction operation", hvd.reducescatter, (f,), {"op": hvd.Sum if odd else hvd.Average}),
        ("Mismatched ALLTOALL tensor shapes", hvd.alltoall, (torch.ones(hvd.size(), 2 + odd),), {}),
    ]
    said = []
    for number, (text, function, args, more) in enumerate(cases):
        between = hvd.allreduce_async(torch.full((3,), 2.0), name=f"unharmed{number}", op=hvd.Sum)
        said.append(str(raises(Mismatch, text, function, *args, name=f"case{number}", **more)))
        same(hvd.synchronize(between), torch.full((3,), 2.0 * hvd.size()))
        same(hvd.allreduce(f, name=f"case{number}"), f)
    assert issubclass(Mismatch, hvd.HorovodInternalError)
    return said


def test_disagreements(ranks: RankPool) -> None:
    said = ranks.run(disagreements)
    assert all(each == said[0] for each in said), "every rank hears the same"
    assert all("rank 0" in text or "ranks 0" in text for text in said[0]), "every rank's value is told"
    assert all("rank 1" in text or "ranks 1" in text for text in said[0]), "every rank's value is told"
    assert "float32" in said[0][0]
    assert "int32" in said[0][0]


def local_errors() -> None:
    import torch

    import hvd_kernel.torch as hvd

    x = torch.ones(3)
    hvd.barrier()
    if hvd.rank() == 0:  # the others have not submitted it: the name is taken on this rank alone
        handle = hvd.allreduce_async(x, name="twice")
        raises(
            ValueError,
            "with the same name as another tensor that is currently being processed",
            hvd.allreduce,
            x,
            name="twice",
        )
    hvd.barrier()
    if hvd.rank() != 0:
        handle = hvd.allreduce_async(x, name="twice")
    same(hvd.synchronize(handle), x)
    raises(ValueError, "is not supported", hvd.allreduce, x.to(torch.float8_e5m2), op=hvd.Sum)
    raises(ValueError, "is not supported", hvd.allreduce, torch.ones(3, dtype=torch.complex64), op=hvd.Min)
    raises(ValueError, "Tensor type torch.BoolTensor is not supported", hvd.allreduce, x > 0)
    raises(ValueError, "Tensor type torch.IntTensor is not supported", hvd.allreduce, x.int(), op=hvd.Adasum)
    raises(ValueError, "Tensor type torch.sparse.FloatTensor is not supported", hvd.allreduce_, x.to_sparse())
    raises(ValueError, "The op parameter supersedes average", hvd.allreduce, x, average=True, op=hvd.Sum)
    raises(ValueError, "op=77 does not exist: use Average, Sum, Adasum, Min, Max, Product.", hvd.allreduce, x, op=77)
    unknown = hvd.ProcessSet([0])
    text = "Allreduce: Process set provided does not exist, or has not been registered."
    raises(ValueError, text, hvd.allreduce, x, process_set=unknown)
    raises(ValueError, "expanded", hvd.allreduce_, torch.ones(1).expand(3))
    for op in (hvd.Min, hvd.Max, hvd.Product, hvd.Adasum):
        for dtype in (torch.float32, torch.int32, torch.bool, torch.float8_e5m2):
            text = "Reducescatter currently only supports AVERAGE and SUM."
            raises(hvd.HorovodInternalError, text, hvd.reducescatter, x.to(dtype), op=op)
    raises(ValueError, "Reducescatter does not support scalar inputs", hvd.reducescatter, torch.tensor(1.0))
    two = torch.ones(2 * hvd.size(), 2)
    for splits, text in (
        ([[1]], "alltoall expects a 1D splits tensor"),
        (torch.ones(hvd.size(), dtype=torch.int64), "alltoall expects splits to contain 32-bit integer elements."),
        ([3] * hvd.size(), "Sum of splits entries is greater than the first dimension of tensor."),
        ([1] * (hvd.size() + 1), "Number of entries in splits does not equal number of workers."),
        ([-1] * hvd.size(), "plit"),
    ):
        raises(ValueError, text, hvd.alltoall, two, splits)
    text = "splits not provided, but first dimension of tensor is not an even multiple of the number of workers."
    raises(ValueError, text, hvd.alltoall, torch.ones(2 * hvd.size() + 1))
    raises(ValueError, "was not created or has been cleared", hvd.poll, 10**9)
    assert hvd.synchronize(10**9) is None
    same(hvd.allreduce(x, name="after"), x)


def test_local_errors(ranks: RankPool) -> None:
    ranks.run(local_errors)
