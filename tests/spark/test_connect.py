"""``hvd_kernel.spark.run`` from a client of Spark Connect, which has no SparkContext: a server of its own on this machine."""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from hvdtest.launch import free_port
from hvdtest.spark_driver import outcomes, started

pytestmark = [pytest.mark.mp, pytest.mark.nightly, pytest.mark.timeout(600)]

SERVER = """
session(
    "local[2]",
    spark_plugins="org.apache.spark.sql.connect.SparkConnectPlugin",
    spark_connect_grpc_binding_port=sys.argv[1],
)
print("up", flush=True)
import threading
threading.Event().wait()
"""
CLIENT = """
import os
from pyspark import SparkContext
from pyspark.sql import SparkSession
session = SparkSession.builder.remote(f"sc://localhost:{os.environ['PORT']}").getOrCreate()
assert SparkContext._active_spark_context is None
import hvd_kernel.spark

def place(offset):
    import numpy as np
    import hvd_kernel.numpy as hvd
    hvd.init()
    total = hvd.allreduce(np.array([hvd.rank() + offset]), op=hvd.Sum)
    return [hvd.rank(), hvd.size(), hvd.local_size(), int(total[0]), "SPARK_CONNECT_AUTHENTICATE_TOKEN" in os.environ]

class Bad(Exception):
    pass

def fails():
    raise Bad("shard", 1)

def results():
    return hvd_kernel.spark.run(place, (1,), num_proc=2)

def cause():
    return hvd_kernel.spark.run(fails, num_proc=1)

def no_slots():
    return hvd_kernel.spark.run(place, (1,), num_proc=3, start_timeout=3)

def no_size():
    return hvd_kernel.spark.run(place, (1,))

tell(results, cause, no_slots, no_size)
"""


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mapping[str, Any]]:
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


def test_results_are_in_rank_order_and_ranks_lack_the_token(told: Mapping[str, Any]) -> None:
    assert told["results"] == [[0, 2, 2, 3, False], [1, 2, 2, 3, False]]


def test_what_a_rank_raises_is_the_cause(told: Mapping[str, Any]) -> None:
    assert (told["cause"]["raised"], told["cause"]["cause"], told["cause"]["args"]) == (
        "RankFailed",
        "Bad",
        ["shard", "1"],
    )


def test_what_a_client_cannot_know_is_said(told: Mapping[str, Any]) -> None:
    assert told["no_slots"]["text"].startswith(
        "Timed out waiting for Spark to start the ranks: 0 of 3 are up after 3 s. Give"
    )
    assert told["no_size"]["text"] == (
        "num_proc is missing: Spark Connect does not tell how many tasks may run, e.g. num_proc=4."
    )
