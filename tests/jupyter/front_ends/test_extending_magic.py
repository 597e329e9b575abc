"""The magic and the sub-command of docs/extending.md, in a real kernel on real ranks."""

from __future__ import annotations

import socket

import pytest
from hvdtest.kernel import Kernel
from hvdtest.recipes import examples

pytestmark = [pytest.mark.jupyter, pytest.mark.mp, pytest.mark.timeout(400), pytest.mark.cluster(2)]


REGISTER = """
from hvd_kernel.magics import context_of
from hvd_kernel.magics.commands.index import register
register(context_of(get_ipython()))
"""
TAKE_BACK = """
get_ipython().magics_manager.magics["line"].pop("hvddevices")
del MAGICS["%hvddevices"], MAGICS, Magic, Context, user_errors, HELP, RANKS, Options, resolve, devices, context_of, register
"""


def test_documented_magic_runs_and_refuses_like_others(kernel: Kernel) -> None:
    kernel.run(examples()["magic"] + REGISTER)  # as %load_ext does with the rows that it finds
    try:
        assert kernel.run("%hvddevices").text() == "rank 0 computes on cpu\nrank 1 computes on cpu\n"
        assert kernel.run("%hvddevices --ranks 1").text() == "rank 1 computes on cpu\n"
        assert "--ranks" in kernel.run("%hvddevices --help").text()
        wrong = kernel.run("%hvddevices --ranks 2", allow_error=True)
        assert "--ranks 2: there is no rank 2; the cluster has ranks 0-1" in str(wrong.error)
    finally:
        kernel.run(TAKE_BACK)


def test_documented_subcommand_runs_and_is_listed(kernel: Kernel) -> None:
    kernel.run(examples()["subcommand"])
    try:
        here = socket.gethostname()
        assert kernel.run("%hvd hosts").text() == f"rank 0 is on {here}\nrank 1 is on {here}\n"
        assert "on which host each rank runs" in kernel.run("%hvd help").text()
    finally:
        kernel.run("del SUBCOMMANDS['hosts'], hosts, SUBCOMMANDS, Subcommand, Context, Options")
