"""A process set that is copied or pickled with its owner still has the same ranks."""

from __future__ import annotations

import copy
import inspect
import pickle
from collections.abc import Iterator

import pytest
import torch

import hvd_kernel.torch as hvd


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("HVD_BOOTSTRAP", "none")
    hvd.init(process_sets="dynamic")
    yield
    hvd.shutdown()


def test_a_deep_copy_is_the_set_itself() -> None:
    some = hvd.ProcessSet([0])
    for each in (some, hvd.global_process_set):
        assert copy.deepcopy(each) is each
    assert copy.deepcopy([some, some]) == [some, some]


def test_unpickled_global_set_is_the_same_object() -> None:
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        assert pickle.loads(pickle.dumps(hvd.global_process_set, protocol)) is hvd.global_process_set
    assert copy.copy(hvd.global_process_set) is hvd.global_process_set


def test_help_shows_the_global_set_by_its_name() -> None:
    shown = str(inspect.signature(hvd.barrier))
    assert shown == "(process_set: 'ProcessSet' = global_process_set) -> 'None'"
    assert str(hvd.global_process_set) == "ProcessSet(process_set_id=0, ranks=[0], mpi_comm=None)"


def test_a_copied_layer_keeps_its_set() -> None:
    model = torch.nn.Sequential(hvd.SyncBatchNorm(3), hvd.SyncBatchNorm(3, process_set=hvd.ProcessSet([0])))
    copied = copy.deepcopy(model)
    assert [layer.process_set for layer in copied] == [layer.process_set for layer in model]
    assert copied[0].weight is not model[0].weight
    inputs = torch.arange(12.0).reshape(4, 3)
    assert torch.equal(copied[0](inputs), model[0](inputs)), "the global set needs no registering after a copy"
    assert pickle.loads(pickle.dumps(model[0])).process_set is hvd.global_process_set
