"""Merging of ranks' outputs: examples, and properties of all inputs."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hvd_kernel.formatting.rank_labels import label, rank_list, spans
from hvd_kernel.magics.display.rank_text import MAX_WIDTH, Lines, TextLimits, labelled, merge, merge_lines

texts = st.dictionaries(st.integers(0, 9), st.lists(st.sampled_from(["", "a", "b", "c", "d"]), max_size=12), max_size=6)


@pytest.mark.parametrize(
    ("ranks", "text"),
    [([0], "0"), ([0, 1, 2, 3], "0-3"), ([3, 2, 0], "0,2-3"), ([0, 1], "0-1"), ([5, 5, 7], "5,7"), ([], "")],
)
def test_spans(ranks: list[int], text: str) -> None:
    assert spans(ranks) == text
    assert label(ranks) == f"[{text}]"


def test_named() -> None:
    assert rank_list([2]) == "rank 2"
    assert rank_list(range(4)) == "ranks 0-3"
    assert rank_list([0, 2]) == "ranks 0,2"
    assert rank_list(range(0, 1000, 2)) == "ranks 0,2,4,6,8,10,12,14,16,18,20,22,... (500 ranks)"


def test_common_lines_appear_once_in_their_place() -> None:
    lines = {
        0: ["only root", "epoch 1", "loss 0", "epoch 2"],
        1: ["epoch 1", "loss 1", "epoch 2"],
        2: ["epoch 1", "loss 2", "epoch 2"],
    }
    assert merge_lines(lines) == ("[0] only root\n[0-2] epoch 1\n[0] loss 0\n[1] loss 1\n[2] loss 2\n[0-2] epoch 2\n")


def test_differing_lines_appear_rank_by_rank() -> None:
    lines = {rank: [f"{rank}:{i}" for i in range(3)] for rank in (1, 0)}
    assert merge_lines(lines) == "[0] 0:0\n[0] 0:1\n[0] 0:2\n[1] 1:0\n[1] 1:1\n[1] 1:2\n"


def test_opposite_orders_are_merged() -> None:
    assert merge({0: ["a", "b", "c"], 1: ["c", "b", "a"]}) == [
        ((0,), "a"),
        ((0,), "b"),
        ((0, 1), "c"),
        ((1,), "b"),
        ((1,), "a"),
    ]


def test_a_repeated_line_is_repeated() -> None:
    assert merge({0: ["a", "a", "b"], 1: ["a", "b"]}) == [((0, 1), "a"), ((0,), "a"), ((0, 1), "b")]


def test_empty_line_is_its_label_and_arrays_stay_aligned() -> None:
    assert merge_lines({0: [""]}) == "[0]\n"
    assert labelled([0, 1], "tensor([[1],\n        [2]])") == "[0-1] tensor([[1],\n              [2]])"


@given(texts)
def test_every_rank_keeps_its_lines_in_its_order(lines: dict[int, list[str]]) -> None:
    merged = merge(lines)
    for rank, own in lines.items():
        assert [item for ranks, item in merged if rank in ranks] == own


@given(texts)
def test_order_of_the_mapping_does_not_matter(lines: dict[int, list[str]]) -> None:
    assert merge(dict(reversed(lines.items()))) == merge(lines)


@given(st.lists(st.sampled_from("abcd"), max_size=30), st.integers(1, 8))
def test_equal_ranks_are_one(own: list[str], n: int) -> None:
    assert merge(dict.fromkeys(range(n), own)) == [(tuple(range(n)), item) for item in own]


@given(texts)
def test_never_longer_than_the_inputs_and_no_group_is_split(lines: dict[int, list[str]]) -> None:
    merged = merge(lines)
    assert max(map(len, lines.values()), default=0) <= len(merged) <= sum(map(len, lines.values()))
    for (a, item), (b, following) in pairwise(merged):
        if item == following:
            assert set(a) & set(b), "ranks that could have said it together were shown apart"


@given(st.lists(st.text(alphabet="abc ", max_size=40), max_size=200), st.integers(2, 40), st.integers(20, 400))
def test_kept_output_is_bounded_and_losses_are_reported(written: list[str], lines: int, chars: int) -> None:
    kept = Lines(TextLimits(lines, chars))
    for line in written:
        kept.feed(line + "\n")
    result = kept.lines()
    assert len(result) <= lines + 1
    assert sum(map(len, result)) <= chars + 80
    marks = [line for line in result if line.startswith("…")]
    left_out = int(marks[0].split()[1].replace(",", "")) if marks else 0
    assert len(result) - len(marks) + left_out == len(written)
    if written:
        assert result[-1] == written[-1]


def test_progress_bar_stays_one_line() -> None:
    lines = Lines()
    for percent in range(101):
        lines.feed(f"\r{percent:3}%")
    assert lines.lines() == ["100%"]
    lines.feed("\r\nready\n")
    assert lines.lines() == ["100%", "ready"]


def test_an_endless_line_is_bounded() -> None:
    lines = Lines()
    for _ in range(100):
        lines.feed("x" * 1000)
    assert lines.lines() == ["x" * MAX_WIDTH + " … 96,000 characters left out"]


def test_head_and_tail_are_kept() -> None:
    lines = Lines(TextLimits(lines=4, chars=1000))
    lines.feed("".join(f"{i}\n" for i in range(1004)))
    assert lines.lines() == ["0", "1", "… 1,000 lines more", "1002", "1003"]
