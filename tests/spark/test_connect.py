"""``hvd_kernel.spark.run`` from a client of Spark Connect, which has no SparkContext: a server of its own on this machine."""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from hvdtest.launch import free_port
from hvdtest.programs import text_of
from hvdtest.spark_driver import outcomes, started

pytestmark = [pytest.mark.mp, pytest.mark.nightly, pytest.mark.timeout(600)]

PROGRAMS = Path(__file__).parent / "programs"
SERVER = text_of(PROGRAMS / "connect_server.py")
CLIENT = text_of(PROGRAMS / "connect_client.py")


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mapping[str, Any]]:
    folder, port = tmp_path_factory.mktemp("connect"), str(free_port())
    token = {"SPARK_CONNECT_AUTHENTICATE_TOKEN": secrets.token_hex(8)}
    server = started(SERVER, port, cwd=folder, env=token)
    try:
        assert server.stdout is not None
        assert server.stdout.readline() == "up\n"
        yield outcomes(CLIENT, folder, PORT=port, **token)
    finally:
        server.terminate()
        server.communicate(timeout=60)


def test_results_are_in_rank_order_and_ranks_lack_the_token(results: Mapping[str, Any]) -> None:
    assert results["results"] == [[0, 2, 2, 3, False], [1, 2, 2, 3, False]]


def test_exception_of_a_rank_is_the_cause(results: Mapping[str, Any]) -> None:
    assert (results["cause"]["raised"], results["cause"]["cause"], results["cause"]["args"]) == (
        "RankFailed",
        "Bad",
        ["shard", "1"],
    )


def test_client_reports_unavailable_information(results: Mapping[str, Any]) -> None:
    assert results["no_slots"]["text"].startswith(
        "Timed out waiting for Spark to start the ranks: 0 of 3 are up after 3 s. Give"
    )
    assert results["no_size"]["text"] == (
        "num_proc is missing: Spark Connect does not tell how many tasks may run, e.g. num_proc=4."
    )
