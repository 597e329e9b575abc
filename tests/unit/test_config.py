"""Settings from the environment, and the shape of a cluster."""

from __future__ import annotations

import re

import pytest

from hvd_kernel._native import Engine
from hvd_kernel.config import SETTINGS, ClusterSpec, engine_options, start_timeout
from hvd_kernel.errors import ConfigError


def test_nothing_set_leaves_the_choice_to_the_core() -> None:
    assert engine_options({}) == {}
    assert engine_options({"HVD_TRANSPORT": ""}) == {}
    assert start_timeout({}) == 30.0


@pytest.mark.parametrize(
    ("env", "options"),
    [
        ({"HVD_TRANSPORT": "tcp"}, {"transport": "tcp"}),
        ({"HOROVOD_FUSION_THRESHOLD": "0"}, {"fusion_threshold": "0"}),
        ({"HOROVOD_FUSION_THRESHOLD": "1", "HVD_FUSION_THRESHOLD": "2"}, {"fusion_threshold": "2"}),
        ({"HOROVOD_CYCLE_TIME": "3.5"}, {"cycle_time_ms": "3.5"}),
        ({"HOROVOD_GLOO_TIMEOUT_SECONDS": "7"}, {"start_timeout_s": "7.0"}),
        ({"HVD_SLOTS": "8", "HVD_SLOT_BYTES": "65536"}, {"slots": "8", "slot_bytes": "65536"}),
        (
            {"HVD_TCP_INTERFACE": "10.0.0.1", "HVD_TRACE_CAPACITY": "100"},
            {"tcp_interface": "10.0.0.1", "trace_capacity": "100"},
        ),
    ],
)
def test_values(env: dict[str, str], options: dict[str, str]) -> None:
    assert engine_options(env) == options


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("HVD_TRANSPORT", "rdma"),
        ("HVD_SLOTS", "1"),
        ("HVD_SLOT_BYTES", "-4"),
        ("HOROVOD_FUSION_THRESHOLD", "64MB"),
        ("HOROVOD_CYCLE_TIME", "nan"),
        ("HOROVOD_CYCLE_TIME", "-1"),
        ("HVD_START_TIMEOUT", "0"),
        ("HVD_START_TIMEOUT", "soon"),
        ("HVD_TCP_INTERFACE", "a b"),
    ],
)
def test_bad_values_name_the_variable(variable: str, value: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(f"{variable}={value!r} cannot be used: it must be ")):
        engine_options({variable: value})


def test_the_core_knows_every_key() -> None:
    with pytest.raises(ValueError, match="known are ") as caught:
        Engine(0, 1, lambda mine: [mine], {"unknown": "1"})
    assert {setting.key for setting in SETTINGS} == set(str(caught.value).partition("known are ")[2].split(", "))


def test_variables_are_unique_and_documented() -> None:
    variables = [v for setting in SETTINGS for v in setting.variables]
    assert len(variables) == len(set(variables))
    assert all(setting.doc and setting.variables[0].startswith("HVD_") for setting in SETTINGS)


def test_cluster_spec() -> None:
    assert ClusterSpec(4) == ClusterSpec(n=4, hosts="", hostfile="", mpi_args=(), start_timeout_s=60.0)
    for wrong in ({"n": 0}, {"n": 2, "hosts": "a:2", "hostfile": "b"}, {"n": 2, "start_timeout_s": 0}):
        with pytest.raises(ConfigError):
            ClusterSpec(**wrong)  # type: ignore[arg-type]
