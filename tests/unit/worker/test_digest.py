"""Digests of the leaves of a value: equal bit for bit or not, bounded; and inspection of names without running code."""

from __future__ import annotations

import collections
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

from hvd_kernel.cluster.requests import transfer as notebook
from hvd_kernel.diagnosis import agreement
from hvd_kernel.errors import ClusterError, UsageError
from hvd_kernel.frameworks import registry
from hvd_kernel.magics.commands.variables import (
    LAYOUTS,
    OWN_SHARD_OF,
    OWN_SHARDS,
    SAME_SHARD,
    ComparedPart,
    Parts,
    Row,
    agreed,
    agreement_of,
    differences,
    uncompared,
    variables_table,
)
from hvd_kernel.magics.rank_names import described
from hvd_kernel.protocol import serialization
from hvd_kernel.protocol.distributed_tensors import LOCAL
from hvd_kernel.worker.inspect import digest, name_lookup, variables
from hvd_kernel.worker.shell import handlers

registry.import_adapters()


class Point(NamedTuple):
    x: int
    y: int


def net() -> torch.nn.Module:
    torch.manual_seed(3)
    return torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Linear(4, 1))


def stepped(model: torch.nn.Module) -> torch.optim.Optimizer:
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    model(torch.ones(2, 3)).sum().backward()
    optimizer.step()
    return optimizer


def of(value: object) -> str:
    return digest.together(digest.leaves(value))


SAME = [
    lambda: None,
    lambda: 2**200,
    lambda: -3,
    lambda: float("nan"),
    lambda: "ä\ud800",
    lambda: {"b": 1, "a": [1, (2.5, b"x")]},
    lambda: {1, "two", 3.0},
    lambda: Point(1, 2),
    lambda: collections.OrderedDict(a=1),
    lambda: np.arange(12).reshape(3, 4).T,
    lambda: np.array(["2020-01-01"], "M8[D]"),
    lambda: np.float32(1.5),
    lambda: torch.arange(12.0).reshape(3, 4).t(),
    lambda: torch.ones(3, dtype=torch.bfloat16),
    lambda: torch.ones(3, dtype=torch.complex64).conj(),
    lambda: torch.zeros(0, 2),
    lambda: torch.tensor(True),
    lambda: torch.nn.Parameter(torch.ones(2)),
    lambda: torch.device("cpu"),
    lambda: torch.float16,
    lambda: Path("/tmp"),
    net,
    lambda: stepped(net()),
    lambda: torch.Generator().manual_seed(4),
    lambda: np.random.default_rng(5),
    lambda: random.Random(6),
]


@pytest.mark.parametrize("make", SAME)
def test_equal_values_have_equal_digests(make) -> None:
    assert of(make()) == of(make()) != ""


def test_every_value_of_the_list_has_a_digest_of_its_own() -> None:
    found = [of(make()) for make in SAME]
    assert len(set(found)) == len(found)


DIFFERENT = [
    (1, True),
    (1, 1.0),
    (0.0, -0.0),
    ("1", 1),
    ([1, 2], (1, 2)),
    ([1, [2]], [[1], 2]),
    ({"a": 1}, {"a": 2}),
    ({1: 0}, {"1": 0}),
    ({1, 2}, {1, 3}),
    ([], [[]]),
    (np.ones(4), np.ones((2, 2))),
    (np.ones(4), np.ones(4, np.float32)),
    (np.ones(2), torch.ones(2, dtype=torch.float64)),
    (torch.tensor([0.0]), torch.tensor([-0.0])),
    (torch.ones(2), torch.ones(2, dtype=torch.float16)),
    (torch.ones(1), torch.ones(1, 1)),
]


@pytest.mark.parametrize(("one", "other"), DIFFERENT)
def test_different_values_have_different_digests(one: object, other: object) -> None:
    assert "" != of(one) != of(other) != ""


def test_dict_order_is_ignored_and_a_view_equals_its_copy() -> None:
    assert of({"a": 1, "b": 2}) == of({"b": 2, "a": 1})
    whole = torch.arange(20.0).reshape(4, 5)
    assert of(whole[:, 1:3]) == of(whole[:, 1:3].clone())


@pytest.mark.parametrize(
    "value", [object(), lambda: 0, np.array([object()]), torch.ones(2).to_sparse(), torch.ones(2, device="meta")]
)
def test_unknown_types_are_not_compared(value: object) -> None:
    assert of(value) == ""
    assert [leaf.digest for leaf in digest.leaves([1, value])][-1] == ""
    assert of([1, value]) != of([2, value]) != ""


@pytest.mark.parametrize("layout", [torch.sparse_coo, torch.sparse_csr, torch.sparse_csc])
def test_a_sparse_tensor_has_a_size(layout: torch.layout) -> None:
    """Pulling one raised torch's own error about ``nbytes``."""
    eye = torch.eye(3, dtype=torch.float64).to_sparse(layout=layout)
    indices = {torch.sparse_coo: 2 * 3 * 8}.get(layout, (4 + 3) * 8)
    assert digest.weigh([eye, eye]) == 2 * (indices + 3 * 8)


def test_recursive_and_deep_values_terminate() -> None:
    ring: list[object] = [1]
    ring.append(ring)
    assert digest.leaves(ring)[-1] == digest.Leaf(("1",), "", "too deep, or a part of itself")
    deep: list[object] = []
    for _ in range(1000):
        deep = [deep]
    assert len(digest.leaves(deep)) == digest.MAX_DEPTH + 2


def test_the_number_of_leaves_is_bounded() -> None:
    found = digest.leaves(list(range(100_000)))
    assert len(found) == digest.MAX_LEAVES + 1
    assert found[-1] == digest.Leaf(("…",), "", "more than 20,000 parts")


def test_a_large_array_is_sampled_at_its_ends_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(digest, "WHOLE_BYTES", 1 << 20)
    monkeypatch.setattr(digest, "BLOCKS", 8)
    for make in (lambda: np.zeros(1 << 19), lambda: torch.zeros(1 << 20)):
        base = digest.leaves(make())[0]
        assert base.sampled
        assert digest.leaves(make())[0] == base
        assert not digest.leaves(make(), whole=True)[0].sampled
        for place in (0, -1):
            changed = make()
            changed[place] = 1
            assert digest.leaves(changed)[0].digest != base.digest
        unseen = make()
        unseen[len(unseen) // 16 + 40_000] = 1  # between two blocks
        assert digest.leaves(unseen)[0].digest == base.digest
        assert digest.leaves(unseen, whole=True)[0].digest != digest.leaves(make(), whole=True)[0].digest


def test_the_leaf_of_a_path_is_found_again() -> None:
    optimizer = stepped(net())
    for leaf in digest.leaves(optimizer):
        assert digest.leaves(digest.at(optimizer, leaf.path))[0].text.split(" of ")[-1] == leaf.text.split(" of ")[-1]
    assert digest.numbers(digest.at(optimizer, ("param_groups", "0", "lr")), 0, 9).tolist() == [0.1]
    assert digest.numbers(torch.arange(6, dtype=torch.bfloat16), 2, 4).tolist() == [2.0, 3.0]
    assert digest.numbers(torch.tensor([1 + 2j]), 0, 9).tolist() == [1.0, 2.0]
    assert digest.numbers("text", 0, 9) is None


def test_the_seeds_are_those_of_random_numpy_and_torch() -> None:
    before = digest.leaves(variables.seeds())
    assert {leaf.path[0] for leaf in before if leaf.path} == {"random", "numpy", "torch"}
    for draw, which in ((random.random, "random"), (np.random.rand, "numpy"), (lambda: torch.rand(1), "torch")):
        then = digest.leaves(variables.seeds())
        draw()
        after = digest.leaves(variables.seeds())
        assert {a.path[0] for a, b in zip(then, after, strict=True) if a != b} == {which}


def test_digests_of_ranks_become_a_sentence() -> None:
    assert agreement.difference(dict.fromkeys(range(4), "a")) == ""
    assert agreement.difference({0: "a", 1: "a", 2: "b", 3: "a"}) == "rank 2 differs"
    assert agreement.difference({0: "a", 1: "b", 2: "b", 3: "b", 4: "c"}) == "ranks 0,4 differ"
    assert agreement.difference({0: "a", 1: "a", 2: "b", 3: "b"}) == "[0-1] [2-3] differ"
    assert agreement.difference({0: "a", 1: "b"}) == "different on every rank"
    assert agreement.agreement({0: "a", 1: "a", 2: "b", 3: "a"}) == "ranks 0-1,3 agree, rank 2 differs"


def of_rank(value: object) -> Parts:
    return {leaf.path: ComparedPart(leaf.digest, leaf.text, leaf.shard) for leaf in digest.leaves(value)}


def test_differing_parts_come_in_order_and_without_their_frames() -> None:
    one, other = of_rank({"a": [1, 2], "b": 3}), of_rank({"a": [1, 5, 6], "b": 4})
    assert [path for path, _ in differences({0: one, 1: other})] == [("a", "1"), ("b",), ("a", "2")]
    assert differences({0: one, 1: one}) == []


def sharded(digests: Sequence[str], shards: Sequence[str]) -> dict[int, Parts]:
    frame = ComparedPart("f", "DTensor")
    return {
        rank: {(): frame, (LOCAL,): ComparedPart(digest, "float32 (2,)", shard)}
        for rank, (digest, shard) in enumerate(zip(digests, shards, strict=True))
    }


def test_shards_are_compared_among_the_ranks_that_hold_them() -> None:
    same = sharded("abab", ["0:0", "0:1", "0:0", "0:1"])
    assert (differences(same), uncompared(same)) == ([], {})
    assert agreed("w", same, {}) == "w is the same on 4 ranks (2 parts)"
    other = sharded("abac", ["0:0", "0:1", "0:0", "0:1"])
    assert differences(other) == [((LOCAL,), {1: "b", 3: "c"})]


def test_different_layouts_are_named_instead_of_their_shards() -> None:
    parts = sharded("aa", ["", ""])
    parts[1][()] = ComparedPart("g", "DTensor of another layout")
    parts[1][LOCAL,] = ComparedPart("b", "float32 (3,)")
    assert differences(parts) == [((), {0: "f", 1: "g"})]


def test_uncompared_values_come_first() -> None:
    alone = sharded("ab", ["0:0", "0:1"])
    unknown = uncompared(alone)
    assert (differences(alone), [*unknown]) == ([], [(LOCAL,)])
    assert agreed("w", alone, unknown) == (
        f"w is not compared: {OWN_SHARD_OF.format(tensors='1 tensor')}; {LAYOUTS} are the same on 2 ranks"
    )
    whole = ComparedPart("b", "float32 (2,)")
    state = {
        rank: {("w", *path): part for path, part in parts.items()} | {("b",): whole} for rank, parts in alone.items()
    }
    assert agreed("s", state, uncompared(state)) == (
        f"s is not compared in 1 of 3 parts ({OWN_SHARD_OF.format(tensors='1 tensor')}); the others are the same on 2 ranks"
    )
    opaque = dict.fromkeys(range(2), of_rank([1, 2, object()]))
    assert agreed("x", opaque, uncompared(opaque)) == (
        "x is not compared in 1 of 4 parts (object); the others are the same on 2 ranks"
    )


def test_table_shows_ranks_and_differences() -> None:
    plain = {"type": "int", "shape": "", "dtype": "", "sampled": False, "partly": False}
    row = {"x": plain | {"value": "5", "digest": "d"}}
    odd = {"x": plain | {"value": "6", "digest": "e"}, "y": plain | {"value": "1", "digest": "f"}}
    assert variables_table({0: row, 1: row, 2: odd}) == (
        "name  type  shape  dtype  value  ranks\n"
        "x     int                 5 | 6  rank 2 differs\n"
        "y     int                 1      only on rank 2\n"
    )
    assert variables_table({0: {}, 1: {}}) == "the ranks have no variables\n"


def test_table_compares_the_shards_that_several_ranks_hold() -> None:
    facts = {"type": "DTensor", "shape": "(4, 2)", "dtype": "float32", "value": "Shard(dim=0) on mesh (2)"}

    def rows(*shards: dict[str, str], only: bool = True) -> dict[int, Row]:
        return {
            rank: facts | {"local": 16 << rank, "digest": "d", "shards": held, "only shards": only}
            for rank, held in enumerate(shards)
        }

    own = rows({"0:0": "a"}, {"0:1": "b"})
    assert agreement_of(own) == OWN_SHARDS
    assert (
        agreement_of(rows({"0:0": "a"}, {"0:1": "b"}, only=False)) == f"{OWN_SHARDS}; the rest is the same on 2 ranks"
    )
    assert agreement_of(rows({"0:0": "a"}, {"0:0": "a"})) == "same on 2 ranks"
    assert agreement_of(rows({"0:0": "a"}, {"0:0": "b"})) == SAME_SHARD.format(ranks="ranks 0-1")
    assert agreement_of({0: own[0]}) == "same on 1 rank"
    line = variables_table({rank: {"w": row} for rank, row in own.items()}).splitlines()[1]
    assert line.split("  ")[-2:] == ["Shard(dim=0) on mesh (2), 16 B to 32 B per rank", OWN_SHARDS]


class Trap:
    """An object whose code fails the test whenever it runs."""

    __slots__ = ("here", "never")

    def __init__(self) -> None:
        object.__setattr__(self, "here", net())

    @property
    def computed(self) -> int:
        raise AssertionError("a property was run")

    def __getattr__(self, name: str) -> object:
        raise AssertionError("__getattr__ was run")

    def __dir__(self) -> list[str]:
        raise AssertionError("__dir__ was run")

    def __getitem__(self, key: object) -> object:
        raise AssertionError("__getitem__ was run")

    def __repr__(self) -> str:
        raise AssertionError("__repr__ was run")

    __str__ = __len__ = __iter__ = __eq__ = __hash__ = __repr__


SPACE = {"model": net(), "trap": Trap(), "torch": torch, "table": {"first key": [net()], 2: "no"}, "_hidden": 1}


@pytest.mark.parametrize(
    ("text", "length", "found"),
    [
        ("mod", 3, [("model", "instance")]),
        ("y = f(mod", 3, [("model", "instance")]),
        ("model[0].wei", 3, [("weight", "instance")]),
        ("table['first key'][0][1].bia", 3, [("bias", "instance")]),
        ("table['fi", 2, [("first key", "key")]),
        ("torch.nn.ReLU6", 5, [("ReLU6", "class")]),
        ("trap.comp", 4, [("computed", "property")]),
        ("trap.here[0].wei", 3, [("weight", "instance")]),
        ("_hid", 4, [("_hidden", "instance")]),
        ("trap.computed.re", 0, []),
        ("trap.nothing.re", 0, []),
        ("trap.never.re", 0, []),
        ("trap[0].re", 0, []),
        ("f(1).mod", 0, []),
        ("'mod", 0, []),
        ("model[i].wei", 0, []),
    ],
)
def test_completion_runs_no_code(text: str, length: int, found: list[tuple[str, str]]) -> None:
    assert name_lookup.matches(SPACE, text) == (length, found)


def test_inspection_runs_no_code() -> None:
    assert name_lookup.fields(SPACE["trap"], "trap", 0) == [
        ("Type", "Trap"),
        ("Class docstring", "An object whose code fails the test whenever it runs."),
    ]
    assert variables.facts(SPACE["trap"])["type"] == "Trap"
    assert name_lookup.fields(of, "of", 1)[0] == ("Signature", "of(value: 'object') -> 'str'")
    assert dict(name_lookup.fields(of, "of", 1))["Source"].startswith("def of(value: object)")
    row = {"type": "int", "shape": "", "dtype": "", "value": "5", "digest": "d"}
    assert (
        described([("Type", "int")], {0: row, 1: row}) == "Type:       int\nValue:      5\nRanks:      same on 2 ranks"
    )


def over_a_shared_buffer(parts: list[Any]) -> list[Any]:
    with serialization.shared_buffer() as (descriptor, address):
        with serialization.reached(address) as there:
            wire, placed = serialization.put(parts, there)
        assert [number for number, _ in placed] == [
            i for i, part in enumerate(parts) if memoryview(part).nbytes >= 1 << 20
        ]
        return serialization.collect(wire, placed, descriptor)


@pytest.mark.parametrize("way", [lambda parts: [bytes(memoryview(part)) for part in parts], over_a_shared_buffer])
def test_arrays_and_tensors_travel_beside_the_pickle(way) -> None:
    sent = {
        "a": np.arange(200_000),
        "t": torch.arange(300_000.0),
        "p": torch.nn.Parameter(torch.ones(50_000)),
        "b": torch.ones(60_000, dtype=torch.bfloat16),
        "g": torch.ones(3, requires_grad=True),
        "model": net(),
    }
    parts = serialization.pack(sent)
    assert len(parts[0]) < 20_000
    back = serialization.unpack(way(parts))
    assert of({name: back[name] for name in "atpbg"}) == of({name: sent[name] for name in "atpbg"})
    assert of(back["model"]) == of(sent["model"])
    back["a"][0] = back["t"][0] = 7  # writable, and private
    assert (sent["a"][0], float(sent["t"][0])) == (0, 0.0)
    assert (back["p"].requires_grad, back["g"].requires_grad, back["t"].requires_grad) == (True, True, False)


def test_readers_of_a_shared_buffer_are_isolated() -> None:
    parts = serialization.pack(np.zeros(1 << 18))
    with serialization.shared_buffer() as (descriptor, _):
        wire, placed = serialization.put(parts, descriptor)
        one, other = (serialization.unpack(serialization.collect(wire, placed, descriptor)) for _ in range(2))
    one[:] = 1
    assert (one.sum(), other.sum()) == (1 << 18, 0)


def test_wrong_shared_buffer_is_not_opened(tmp_path: Path) -> None:
    with serialization.shared_buffer() as (_, address), serialization.shared_buffer() as (_, other):
        with serialization.reached({**address, "secret": other["secret"]}) as wrong:
            assert wrong is None
        with serialization.reached({**address, "pid": 1 << 22}) as nobody:
            assert nobody is None
        with (
            (tmp_path / "file").open("wb") as file,
            serialization.reached({**address, "descriptor": file.fileno()}) as plain,
        ):
            assert plain is None
        with serialization.reached(address) as right:
            assert right is not None


def test_too_large_push_is_refused_before_the_transfer() -> None:
    sent = {"big": np.zeros(1 << 17), "small": 1}
    asked: list[list[int]] = []

    def ask(ranks: list[int], content: dict, buffers: list[Any]) -> dict:
        asked.append(list(ranks))
        return {rank: ({"unreached": bool(content["placed"]) and rank == 2}, []) for rank in ranks}

    with pytest.raises(UsageError, match=r"pushing `big` 4 MiB, `small` .* would move more than 2 MiB: .*--force"):
        notebook.push(sent, [0, 1, 2, 3], {0, 1, 2}, 2 << 20, ask)
    assert asked == []
    notebook.push(sent, [0, 1, 2, 3], {0, 1, 2}, None, ask)
    assert asked == [[0, 1, 2], [3, 2]], "rank 3 is on another host, rank 2 could not reach the shared buffer"
    with pytest.raises(ClusterError, match="`bad`"):
        notebook.push({"bad": (i for i in ())}, [0], {0}, None, ask)


@pytest.mark.parametrize("here", [{0, 1}, {1}, set()])
def test_pull_requests_sizes_before_values(here: set[int]) -> None:
    held = {0: np.zeros(1 << 10), 1: np.zeros(1 << 17)}
    asked: list[int | None] = []

    def ask(ranks: list[int], content: dict, _buffers: list[Any]) -> dict:
        asked.append(content["at_most"])
        return {rank: handlers.send_values({"w": held[rank]}, rank, content) for rank in ranks}

    found = notebook.fetch([0, 1], here, 1_500_000, ask)
    assert asked == [750_000, None]
    assert {rank: len(each["w"]) for rank, each in found.items()} == {0: 1 << 10, 1: 1 << 17}
    asked.clear()
    with pytest.raises(UsageError, match=r"pulling `w` 1 MiB would move more than 976\.56 KiB: pull from one rank"):
        notebook.fetch([0, 1], here, 1_000_000, ask)
    assert asked == [500_000]


def test_the_limit_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    assert notebook.limit(force=False) == 1 << 30
    monkeypatch.setenv("HVD_MAX_MOVE", "16M")
    assert notebook.limit(force=False) == 16 << 20
    assert notebook.limit(force=True) is None
    monkeypatch.setenv("HVD_MAX_MOVE", "lots")
    with pytest.raises(ValueError, match="HVD_MAX_MOVE='lots' cannot be used: it must be a number of bytes"):
        notebook.limit(force=False)
