"""Checkpoints of one process, and of several simulated in turn: the stored state is the committed one."""

from __future__ import annotations

import errno
import logging
import math
import os
import threading
from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hvdtest.disk import Disk
from hypothesis import given
from hypothesis import strategies as st

import hvd_kernel.torch as hvd
from hvd_kernel import elastic
from hvd_kernel.elastic.checkpoint import checkpoint as checkpoints
from hvd_kernel.elastic.checkpoint import shard
from hvd_kernel.elastic.checkpoint.folder import stored
from hvd_kernel.elastic.checkpoint.shard import CODES
from hvd_kernel.elastic.checkpoint.values import ITEM_BYTES, Encoder, NotStorable, decode
from hvd_kernel.errors import StateLost

pytestmark = pytest.mark.usefixtures("alone")


leaves = st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary() | st.complex_numbers()
keys = st.text() | st.integers() | st.tuples(st.integers(), st.text())
trees = st.recursive(
    leaves,
    lambda inner: (
        st.lists(inner)
        | st.tuples(inner, inner)
        | st.dictionaries(keys, inner)
        | st.frozensets(keys)
        | st.sets(keys)
        | st.dictionaries(st.text(), inner).map(OrderedDict)
    ),
    max_leaves=12,
)


def test_every_dtype_with_a_size_has_a_code() -> None:
    assert CODES.keys() == ITEM_BYTES.keys()


def told(value: Any) -> Any:
    """Return a value by its parts: 0.0 is not -0.0, nan is nan, and sets have no order."""
    if isinstance(value, list | tuple):
        return type(value).__name__, [told(one) for one in value]
    if isinstance(value, set | frozenset):
        return type(value).__name__, sorted(map(repr, value))
    if isinstance(value, dict):
        return type(value).__name__, [(told(key), told(one)) for key, one in value.items()]
    return repr(value)


@given(trees)
def test_values_are_restored_unchanged(value: Any) -> None:
    encoder = Encoder()
    tree = checkpoints.shards.json.loads(checkpoints.shards.json.dumps(encoder.encode(value, "v")))
    assert told(decode(tree, encoder.tensors)) == told(value)


@pytest.mark.parametrize(
    "tensor",
    [
        np.float32(2.5),
        np.array(True),
        np.zeros((0, 3), np.int16),
        np.arange(6).reshape(2, 3).T,
        torch.tensor(1.5, dtype=torch.bfloat16),
        torch.arange(6).reshape(2, 3).T,
        torch.zeros(0, 2),
        torch.tensor([1 + 2j]),
        torch.tensor([-0.0, math.nan]),
        torch.tensor([1.0]).to(torch.float8_e5m2),
    ],
    ids=str,
)
def test_tensors_are_restored_unchanged(tensor: Any) -> None:
    encoder = Encoder()
    again = decode(encoder.encode({"a": {"b": tensor}, "a.b": 0}, "v"), encoder.tensors)["a"]["b"]
    assert (type(again), again.dtype, again.shape) == (type(tensor), tensor.dtype, tensor.shape)
    raw = [
        np.asarray(one.view(torch.uint8) if one.numel() and one.dim() else one.double())
        if isinstance(one, torch.Tensor)
        else np.asarray(one)
        for one in (
            again.contiguous() if isinstance(again, torch.Tensor) else again,
            tensor.contiguous() if isinstance(tensor, torch.Tensor) else tensor,
        )
    ]
    np.testing.assert_array_equal(*raw)


def test_two_tensors_of_one_path_are_two() -> None:
    encoder = Encoder()
    value = {"a": {"b": np.array([1])}, "a.b": np.array([2])}
    again = decode(encoder.encode(value, "v"), encoder.tensors)
    assert (again["a"]["b"][0], again["a.b"][0]) == (1, 2)


class Mine:
    pass


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (Mine(), r"own\.values\.x is a .*\.Mine, which a checkpoint cannot hold: .* Keep numbers, strings"),
        ([1, {"k": Mine()}], r"own\.values\.x\.1\.k is a"),
        (np.array(["a"]), r"own\.values\.x: .* an array of <U1"),
        (torch.zeros(2).to_sparse(), r"own\.values\.x: .* a tensor of torch\.float32, torch\.sparse_coo"),
    ],
)
def test_a_value_that_cannot_be_stored_is_named(value: Any, said: str, tmp_path: Path) -> None:
    state = elastic.ObjectState(x=value)
    elastic.Checkpoint(tmp_path).attach(state)
    with pytest.raises(NotStorable, match=said):
        state.commit()


def test_objects_without_a_snapshot_are_refused(tmp_path: Path) -> None:
    class Counter(elastic.State):
        def save(self) -> None: ...
        def restore(self) -> None: ...
        def sync(self) -> None: ...

    with pytest.raises(NotImplementedError, match="Counter has no snapshot"):
        elastic.Checkpoint(tmp_path).attach(Counter())

    class More(elastic.ObjectState):
        def save(self) -> None: ...

    with pytest.raises(NotImplementedError, match=r"More has a save\(\) of its own, .* that of ObjectState"):
        elastic.Checkpoint(tmp_path).attach(More(x=1))
    with pytest.raises(ValueError, match="every=0 and keep=2"):
        elastic.Checkpoint(tmp_path, every=0)
    with pytest.raises(ValueError, match="call its attach"):
        elastic.Checkpoint(tmp_path).save()


def committed(folder: Path, count: int, **options: int) -> elastic.Checkpoint:
    state = elastic.ObjectState(x=0)
    checkpoint = elastic.Checkpoint(folder, **options)
    checkpoint.attach(state)
    state.sync_from()
    for _ in range(count):
        state.x += 1
        state.commit()
    checkpoint.wait()
    return checkpoint


def resumed(folder: Path) -> tuple[int, int]:
    state = elastic.ObjectState(x=0)
    checkpoint = elastic.Checkpoint(folder)
    checkpoint.attach(state)
    state.sync_from()
    return state.x, state.commit_number


def test_newest_checkpoint_is_loaded_and_recent_ones_kept(tmp_path: Path) -> None:
    committed(tmp_path / "a" / "b", 7, every=2, keep=2)
    assert [(one.number, one.complete) for one in stored(tmp_path / "a" / "b")] == [(6, True), (4, True)]
    assert resumed(tmp_path / "a" / "b") == (6, 6)
    committed(tmp_path / "a" / "b", 1, every=1, keep=1)
    assert [one.number for one in stored(tmp_path / "a" / "b")] == [7], "it went on from 6"
    assert resumed(tmp_path / "none") == (0, 0)


def test_guarded_steps_count(tmp_path: Path) -> None:
    state = elastic.ObjectState(x=0)
    checkpoint = elastic.Checkpoint(tmp_path, every=4)
    checkpoint.attach(state)
    guard = elastic.StepGuard(state)
    for _ in range(3):
        for _ in range(3):
            with guard:
                state.x += 1
        state.commit()
        checkpoint.wait()
    assert [one.number for one in stored(tmp_path)] == [12, 8], "the first commit after every four"


def test_resume_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    committed(tmp_path, 3)
    with caplog.at_level(logging.WARNING, "hvd_kernel"):
        assert resumed(tmp_path) == (3, 3)
    (said,) = [record.message for record in caplog.records]
    assert said.startswith(f"checkpoint: resumed from {tmp_path}/commit-0000000003-")
    assert said.endswith(": commit 3, written by 1 ranks")


def test_training_continues_while_a_checkpoint_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    may_write, writes = threading.Event(), threading.Event()

    def before(_: int, name: str, __: Any) -> None:
        if name == "write":
            writes.set()
            assert may_write.wait(60)

    monkeypatch.setattr(shard, "os", Disk(before))
    state = hvd.elastic.TorchState(torch.nn.Linear(2, 2), history=[])
    checkpoint = elastic.Checkpoint(tmp_path, every=2)
    checkpoint.attach(state)
    state.commit()
    kept = state.model.weight.detach().clone()
    state.commit()
    assert writes.wait(60)
    with torch.no_grad():
        state.model.weight += 1
    state.history.append("later")
    state.commit()  # without a wait
    assert [one.complete for one in stored(tmp_path)] == [False]
    may_write.set()
    checkpoint.wait()
    other = hvd.elastic.TorchState(torch.nn.Linear(2, 2), history=["else"])
    again = elastic.Checkpoint(tmp_path)
    again.attach(other)
    assert again.load() == 2
    assert torch.equal(other.model.weight, kept)
    assert other.history == []


FAULTS = [errno.ENOSPC, errno.EIO, errno.EROFS]


@pytest.mark.parametrize("number", [errno.ENOSPC, *(pytest.param(n, marks=pytest.mark.nightly) for n in FAULTS[1:])])
@pytest.mark.parametrize("call", ["mkdir", "open", "write", "fsync", "rename"])
def test_e5_full_disk_does_not_end_training(
    call: str, number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    committed(tmp_path, 1)

    def fail(_: int, name: str, args: tuple[Any, ...]) -> None:
        if name == call and not (name == "open" and not args[1] & os.O_CREAT):
            raise OSError(number, os.strerror(number))

    state = elastic.ObjectState(x=0)
    checkpoint = elastic.Checkpoint(tmp_path)
    checkpoint.attach(state)
    state.sync_from()
    with monkeypatch.context() as patch, caplog.at_level(logging.WARNING, "hvd_kernel"):
        patch.setattr(shard, "os", Disk(fail))
        state.x = 2
        state.commit()
        with pytest.raises(OSError, match=os.strerror(number)) as caught:
            checkpoint.wait()
    assert caught.value.errno == number
    assert any(
        "commit 2 is not stored" in record.message and os.strerror(number) in record.message
        for record in caplog.records
    )
    assert resumed(tmp_path) == (1, 1)
    assert not list(tmp_path.rglob(".unfinished-*"))
    state.commit()
    checkpoint.wait()
    assert resumed(tmp_path) == (2, 3), "the next one is stored"
    assert [one.number for one in stored(tmp_path) if not one.complete] == [], "what was left is swept away"


class Played:
    """Ranks that write one after the other, each its shard."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = (0, 1)
        monkeypatch.setattr(checkpoints, "session", self)
        monkeypatch.setattr(checkpoints, "SMALLEST_SHARD", 64)

    def rank(self) -> int:
        return self.now[0]

    def size(self) -> int:
        return self.now[1]


def test_folder_that_some_ranks_cannot_write_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    played = Played(monkeypatch)
    state = trained()
    checkpoint = elastic.Checkpoint(tmp_path)
    checkpoint.attach(state)
    played.now = 0, 2
    with caplog.at_level(logging.WARNING, "hvd_kernel"):
        for _ in range(3):
            assert not caplog.records, "others may be slow"
            state.commit()
            checkpoint.wait()
    (said,) = [record.message for record in caplog.records]
    assert "commit-0000000001-0 has only the shards shard-00000-of-00002-" in said
    assert "one that all hosts share" in said
    assert [one.number for one in stored(tmp_path)] == [3, 2]


def trained() -> elastic.State:
    torch.manual_seed(3)
    model = torch.nn.Sequential(torch.nn.Linear(5, 8), torch.nn.BatchNorm1d(8), torch.nn.Linear(8, 2)).to(
        torch.bfloat16
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    return hvd.elastic.TorchState(
        model,
        optimizer,
        scheduler=torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5),
        scaler=torch.amp.GradScaler("cpu", init_scale=8.0),
        sampler=hvd.elastic.ElasticSampler(range(20)),
        generator=torch.Generator().manual_seed(5),
        epoch=0,
        seen=set(),
    )


def train(state: Any, steps: int) -> None:
    for _ in range(steps):
        state.optimizer.zero_grad()
        state.model(torch.rand(4, 5, generator=state.generator).bfloat16()).sum().backward()
        state.optimizer.step()
        state.scheduler.step()
        state.seen |= set(state.sampler.get_indices(0, 2))
        state.sampler.record_batch(0, 2)
        state.epoch += 1
    state.commit()


def whole(state: Any) -> str:
    parts = [state.model, state.optimizer, state.scheduler, state.scaler, state.sampler]
    torch.set_printoptions(profile="full")
    numbers = [torch.rand(2, generator=state.generator).tolist()]
    return repr([*(part.state_dict() for part in parts), *numbers, state.epoch, state.seen, state.commit_number])


@pytest.mark.parametrize("size", [1, 4])
def test_training_resumes_bit_for_bit_on_any_number_of_ranks(
    size: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    played = Played(monkeypatch)
    state = trained()
    train(state, 3)
    checkpoint = elastic.Checkpoint(tmp_path)
    checkpoint.attach(state)
    for rank in reversed(range(size)):
        played.now = rank, size
        checkpoint.save()
        checkpoint.wait()
        assert stored(tmp_path)[0].complete == (rank == 0), "not before all ranks have written"
    assert len(stored(tmp_path)[0].shards) == size
    bytes_of = [path.stat().st_size for path in stored(tmp_path)[0].shards[1:]]
    assert max(bytes_of, default=0) < 2 * min(bytes_of, default=1)
    other = trained()
    train(other, 1)
    again = elastic.Checkpoint(tmp_path)
    again.attach(other)
    assert again.load() == 1
    assert whole(other) == whole(state)
    state.restore()
    other.restore()
    train(other, 1)
    train(state, 1)
    assert whole(other) == whole(state), "also what comes after"


def test_checkpoint_of_another_model_is_not_damage(tmp_path: Path) -> None:
    state = hvd.elastic.TorchState(torch.nn.Linear(2, 2))
    checkpoint = elastic.Checkpoint(tmp_path)
    checkpoint.attach(state)
    state.commit()
    checkpoint.wait()
    for other, said in [
        (hvd.elastic.TorchState(torch.nn.Linear(3, 2)), "size mismatch for weight"),
        (
            hvd.elastic.TorchState(torch.nn.Linear(2, 2), sampler=hvd.elastic.ElasticSampler(range(2))),
            "give it the same",
        ),
    ]:
        elastic.Checkpoint(tmp_path).attach(other)
        with pytest.raises(StateLost, match=said):
            other.sync_from()
