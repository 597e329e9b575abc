"""Checkpoints that are truncated, changed, or made by an attacker."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import pickle
import random
import re
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hvdtest.disk import Crashed, Disk, ends_at
from hvdtest.examples import ALL

from hvd_kernel import elastic
from hvd_kernel.elastic.checkpoint import folder, shard
from hvd_kernel.elastic.checkpoint.checkpoint import PREVIOUS, UNUSABLE
from hvd_kernel.elastic.checkpoint.shard import Damaged, Shard
from hvd_kernel.elastic.checkpoint.values import Encoder, decode
from hvd_kernel.errors import StateLost

pytestmark = pytest.mark.usefixtures("alone")


def loaded(where: Path) -> tuple[int, list[int]]:
    state = elastic.ObjectState(x=np.zeros(3, np.int64))
    checkpoint = elastic.Checkpoint(where)
    checkpoint.attach(state)
    return checkpoint.load(), state.x.tolist()


def write(where: Path, number: int, attempt: str, *, ranks: int = 2) -> None:
    """Store a commit as ranks do, one after the other, each in its own shard; rank 0 sweeps."""
    encoder = Encoder()
    tree = {"alike": {"dict": []}, "own": encoder.encode({"values": {"x": np.full(3, number)}}, "own")}
    for rank in reversed(range(ranks)):
        metadata = {"number": number, "ranks": ranks, "tree": tree if rank == 0 else None}
        path = folder.prepared(where, number, attempt)
        shard.write(path, rank, ranks, Shard(metadata, encoder.tensors if rank == 0 else {}))
    folder.prune(where, 1)


@pytest.mark.parametrize("begins", ["one", *(pytest.param(b, marks=pytest.mark.nightly) for b in ("none", "torn"))])
def test_g1_a_kill_at_any_system_call_leaves_the_old_or_the_new(begins: str, tmp_path: Path) -> None:
    found = set()
    for number in range(200):
        where = tmp_path / str(number)
        where.mkdir()
        if begins != "none":
            write(where, 1, "a")
        if begins == "torn":
            shard.write(folder.prepared(where, 2, "b"), 1, 2, Shard({}, {}))

        def work(disk: Disk, where: Path = where) -> None:
            shard.os = disk  # of the child
            write(where, 2, "c")

        came_so_far = ends_at(number, work)
        number_found, values = loaded(where)
        found.add(number_found)
        assert values == [number_found] * 3
        if not came_so_far:
            assert number_found == 2
            break
        write(where, 3, "d")
        assert loaded(where) == (3, [3, 3, 3]), "what a kill has left is in nobody's way"
        assert [one.number for one in folder.stored(where)] == [3]
    assert number > 15, "as many calls were there"
    assert found == {0 if begins == "none" else 1, 2}


def test_g2_a_power_failure_leaves_the_old_or_the_new(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Cover all that file systems may do with data that is not durable: lose any part, in any order."""
    root = tmp_path / "disk"
    root.mkdir()
    write(root, 1, "a")
    before = tmp_path / "before"
    root.rename(before)
    root.mkdir()
    for path in sorted(before.rglob("*")):
        copy = root / path.relative_to(before)
        copy.mkdir() if path.is_dir() else copy.write_bytes(path.read_bytes())
    disk = Disk()
    with monkeypatch.context() as patch:
        patch.setattr(shard, "os", disk)
        write(root, 2, "b")
    for path in sorted(root.rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    root.rmdir()
    before.rename(root)
    dice = random.Random(7)
    found = set()
    for number in range(10_000 if ALL else 300):
        calls = disk.calls[: dice.randint(0, len(disk.calls))]
        onto = tmp_path / f"crashed-{number}"
        onto.mkdir()
        Crashed(root, calls, dice).put(root, onto)
        number_found, values = loaded(onto)
        assert number_found in {1, 2}
        assert values == [number_found] * 3
        found.add((number_found, len(calls) == len(disk.calls)))
    assert {(1, False), (2, False), (2, True)} <= found
    assert (1, True) not in found, "what has ended is durable"


def a_shard(where: Path) -> Path:
    encoder = Encoder()
    tree = encoder.encode({"a": np.arange(5), "b": [np.float32(1), "text"]}, "own")
    return shard.write(where, 0, 1, Shard({"number": 1, "tree": tree}, encoder.tensors))


def test_shard_is_readable_by_safetensors(tmp_path: Path) -> None:
    data = a_shard(tmp_path).read_bytes()
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    assert length % 8 == 0
    begin, end = header["own.a"]["data_offsets"]
    assert header["own.a"] == {"dtype": "I64", "shape": [5], "data_offsets": [begin, end]}
    assert np.frombuffer(data[8 + length :][begin:end], np.int64).tolist() == [0, 1, 2, 3, 4]
    assert all(isinstance(value, str) for value in header["__metadata__"].values())


def test_g3_truncated_or_changed_shard_is_refused(tmp_path: Path) -> None:
    path = a_shard(tmp_path)
    data = path.read_bytes()
    for length in range(len(data)):
        path.write_bytes(data[:length])
        with pytest.raises(Damaged, match="is damaged"):
            shard.read(path)
    for more in (b"\0", data):
        path.write_bytes(data + more)
        with pytest.raises(Damaged, match="are not those that were written"):
            shard.read(path)
    every_bit = range(8 * len(data))
    for bit in every_bit if ALL else random.Random(3).sample(every_bit, 200):
        changed = bytearray(data)
        changed[bit // 8] ^= 1 << bit % 8
        path.write_bytes(changed)
        with pytest.raises(Damaged, match="is damaged"):
            shard.read(path)
    path.write_bytes(data)
    assert shard.read(path).metadata["number"] == 1


def test_g3_checkpoint_before_a_damaged_one_is_loaded(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    state = elastic.ObjectState(x=np.zeros(3, np.int64))
    checkpoint = elastic.Checkpoint(tmp_path, keep=3)
    checkpoint.attach(state)
    for number in (1, 2, 3):
        state.x = np.full(3, number)
        state.commit()
        checkpoint.wait()
    for number, cut in ((3, -1), (2, 10)):
        (damaged,) = next(one for one in folder.stored(tmp_path) if one.number == number).shards
        damaged.write_bytes(damaged.read_bytes()[:cut])
        with caplog.at_level(logging.WARNING, "hvd_kernel"):
            assert loaded(tmp_path) == (number - 1, [number - 1] * 3)
        assert any(str(damaged) in record.message and PREVIOUS in record.message for record in caplog.records)
    (last,) = folder.stored(tmp_path)[2].shards
    last.write_bytes(b"")
    with pytest.raises(StateLost, match=re.escape(UNUSABLE.format(count=3, folder=tmp_path))):
        loaded(tmp_path)
    other = elastic.ObjectState(x=0)
    elastic.Checkpoint(tmp_path).attach(other)
    with pytest.raises(StateLost, match="Rank 0 could not load what the job begins with: StateLost: None of 3"):
        other.sync_from()


def forged(where: Path, header: Any, data: bytes = b"", *, raw: bytes | None = None) -> Path:
    """Return a file with all its digests right: only its contents are wrong."""
    if raw is None:
        metadata = {"sha256": hashlib.sha256(data).hexdigest(), "hvd_kernel": "{}"}
        raw = json.dumps({"__metadata__": metadata, **header}).encode()
    start = len(raw).to_bytes(8, "little") + raw
    path = where / f"shard-00000-of-00001-{hashlib.sha256(start).hexdigest()[:16]}.safetensors"
    path.write_bytes(start + data)
    return path


def entry(dtype: Any = "U8", shape: Any = (4,), offsets: Any = (0, 4)) -> dict[str, Any]:
    return {"t": {"dtype": dtype, "shape": shape, "data_offsets": offsets}}


class Bomb:
    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, ("it-ran",)


@pytest.mark.parametrize(
    ("header", "raw"),
    [
        (entry(shape=[2**62], offsets=[0, 2**62]), None),
        (entry(shape=[5]), None),
        (entry(shape=[-4]), None),
        (entry(shape=[-2, -2]), None),
        (entry(offsets=[-4, 0]), None),
        (entry(offsets=[4, 0]), None),
        (entry(offsets=[0, 5]), None),
        (entry(offsets=[0]), None),
        (entry(dtype="object"), None),
        (entry(dtype=["U8"]), None),
        (entry(shape="4"), None),
        (entry(shape=[[4]]), None),
        ({"t": 3}, None),
        (None, b"[]"),
        (None, b"{}"),
        (None, b"null"),
        (None, b'{"__metadata__": "x"}'),
        (None, b"[" * 100_000),
        (None, b'{"__metadata__": ' * 50_000),
        (None, b"\xff\xfe"),
        (None, pickle.dumps(Bomb())),
    ],
    ids=range(21),
)
def test_g4_a_hostile_file_is_refused_and_runs_nothing(
    header: Any, raw: bytes | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    path = forged(tmp_path, header, b"abcd", raw=raw)
    tracemalloc.start()
    with pytest.raises(Damaged, match="is damaged"):
        shard.read(path)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 10_000_000 + 60 * path.stat().st_size
    assert not Path("it-ran").exists()


def test_g4_claimed_length_allocates_no_memory(tmp_path: Path) -> None:
    path = tmp_path / f"shard-00000-of-00001-{'0' * 16}.safetensors"
    path.write_bytes((2**63).to_bytes(8, "little") + b"{}")
    with pytest.raises(Damaged, match="would be 9223372036854775808 bytes long, and the file has 10: it is cut off"):
        shard.read(path)


def test_g4_links_are_not_followed_and_pipes_not_awaited(tmp_path: Path) -> None:
    path = a_shard(tmp_path)
    real = path.rename(tmp_path / "elsewhere")
    path.symlink_to(real)
    with pytest.raises(Damaged, match="Too many levels of symbolic links"):
        shard.read(path)
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(Damaged, match="is damaged"):
        shard.read(path)
    with pytest.raises(Damaged, match="its name is not that of a shard"):
        shard.read(real)


@pytest.mark.parametrize(
    "tree",
    [
        {"tensor": ["numpy", "../../etc/passwd"]},
        {"tensor": ["os.system", "t"]},
        {"tensor": "t"},
        {"pickle": "gASVHQAAAAAAAACMBXBvc2l4"},
        {"dict": [[["a"], 1]]},
        {"dict": [[1]]},
        {"dict": 3},
        {"set": [[1]]},
        {"bytes": "xy"},
        {"complex": [1, 2, 3]},
        {"a": 1, "b": 2},
        {},
    ],
    ids=str,
)
def test_g4_a_hostile_tree_is_no_value(tree: Any) -> None:
    with pytest.raises(ValueError, match=r"."):
        decode([tree], {})
