"""Requests to several ranks: what is told of those that do not answer in time."""

from __future__ import annotations

import pytest

from hvd_kernel.cluster.requests.gather import Gather
from hvd_kernel.errors import ClusterError


def test_who_does_not_answer_may_wait_for_one_that_has_failed() -> None:
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
