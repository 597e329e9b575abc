"""A child that a cell forks still prints into the notebook, through the port that only it can speak to (S1)."""

from __future__ import annotations

import pytest
from hvdtest.place import Place

pytestmark = [pytest.mark.jupyter, pytest.mark.mp, pytest.mark.timeout(400)]

FORK = """
import os, sys
child = os.fork()
if not child:
    try:
        print("from the child", flush=True)
        sys.stdout.flush()
    finally:
        os._exit(0)
os.waitpid(child, 0)[1]
"""


def test_s1_forked_children_print_through_the_closed_pipe(place: Place) -> None:
    started = place.kernel.start(FORK)
    text = place.kernel.wait_for("stream", timeout=30)["text"]
    outcome = place.kernel.finish_rest(started)
    assert outcome.shown == ["0"]
    assert text.strip() == "from the child"
