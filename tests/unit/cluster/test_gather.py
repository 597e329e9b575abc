"""Requests to several ranks: errors of late or dead ranks, also of a thousand."""

from __future__ import annotations

import pytest

from hvd_kernel.cluster import failure
from hvd_kernel.cluster.ranks.procedure import ranks_are
from hvd_kernel.cluster.requests.gather import Gather
from hvd_kernel.errors import ClusterError


def test_error_of_a_rank_is_kept_beside_missing_answers() -> None:
    """That one's error is the cause; only the other rank, which waited for it, was named."""
    gather = Gather({0, 1, 2}, "rendezvous")
    gather.on_reply(2, {}, [])
    gather.on_reply(0, {"error": "OSError: address in use"}, [])
    with pytest.raises(ClusterError) as told:
        gather.wait(0.0)
    late = "no answer from rank 1 within 0 s: `%hvd stacks` shows where it is"
    assert str(told.value) == f"rendezvous: rank 0: OSError: address in use; {late}"


def test_when_all_have_answered_the_first_error_is_raised() -> None:
    gather = Gather({0, 1}, "pull")
    gather.on_reply(1, {"error": "KeyError: x"}, [])
    gather.on_reply(0, {}, [])
    with pytest.raises(ClusterError, match=r"^pull: rank 1: KeyError: x$"):
        gather.wait(0.0)


MANY = range(2, 1000)
CAUSES = {rank: f"killed by signal {9 + rank % 3}" for rank in MANY}
LONGEST = 1000  # characters


@pytest.mark.parametrize(
    ("error", "start"),
    [
        (failure.dead_ranks(MANY, dict.fromkeys(MANY, "Killed")), "ranks 2-999 (Killed) are dead, so "),
        (failure.dead_ranks([1, 2, 3], {1: "a", 2: "b", 3: "b"}), "ranks 1 (a), 2-3 (b) are dead, so "),
        (failure.dead_ranks([2], {2: "a"}), "rank 2 (a) is dead, so "),
        (
            failure.dead_ranks(MANY, CAUSES),
            "ranks 2,5,8,11,14,17,20,23,26,29,32,35,... (333 ranks) (killed by signal 11), 3,6,",
        ),
        (failure.dead_ranks(MANY, {rank: str(rank) for rank in MANY}), "ranks 2 (2), 3 (3), "),
        (failure.not_resizable(4, MANY), "ranks 2-999 run on other hosts"),
        (
            failure.unanswered("x", MANY, 1.0, {}),
            "x: no answer from ranks 2-999 within 1 s: `%hvd stacks` shows where they",
        ),
        (failure.unanswered("x", [1], 1.0, {rank: {"error": "e"} for rank in MANY}), "x: rank 2: e; rank 3: e; "),
        (ranks_are(MANY), "ranks 2-999 are"),
    ],
)
def test_a_message_about_a_thousand_ranks_is_short(error: object, start: str) -> None:
    """An interrupted start of 1000 ranks once gave errors of 38,000 characters."""
    assert start in str(error)
    assert len(str(error)) < LONGEST
