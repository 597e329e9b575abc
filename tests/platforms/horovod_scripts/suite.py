"""Tests of a user's training code that import horovod; pytest runs them as one rank."""

import horovod.torch as hvd
import pytest
import torch


@pytest.fixture(scope="module", autouse=True)
def horovod():
    hvd.init()
    yield
    hvd.shutdown()


def test_one_rank_is_a_world():
    assert (hvd.rank(), hvd.size(), hvd.local_rank()) == (0, 1, 0)


def test_wrapped_optimizer_steps():
    weight = torch.nn.Parameter(torch.tensor([1.0, 2.0]))
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([weight], lr=0.5), named_parameters=[("weight", weight)])
    (weight * 2).sum().backward()
    optimizer.step()
    assert weight.tolist() == [0.0, 1.0]


def test_a_missing_framework_is_an_import_error():
    with pytest.raises(ImportError):
        import horovod.tensorflow  # noqa: F401
