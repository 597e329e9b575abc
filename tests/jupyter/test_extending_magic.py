"""The magic of docs/extending.md, in a real kernel on real ranks."""

from __future__ import annotations

import socket

import pytest
from hvdtest.kernel import Kernel
from hvdtest.recipes import examples

pytestmark = [pytest.mark.jupyter, pytest.mark.mp, pytest.mark.timeout(400), pytest.mark.cluster(2)]


def test_the_new_word_acts_and_is_listed(kernel: Kernel) -> None:
    kernel.run(examples()["magic"])
    try:
        here = socket.gethostname()
        assert kernel.run("%hvd hosts").text() == f"rank 0 is on {here}\nrank 1 is on {here}\n"
        assert "on which host each rank runs" in kernel.run("%hvd help").text()
    finally:
        kernel.run("del SUBCOMMANDS['hosts'], hosts, SUBCOMMANDS, Subcommand, Context, Options")
