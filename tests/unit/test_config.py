"""Settings from the environment, and the shape of a cluster."""

from __future__ import annotations

import re

import pytest

from hvd_kernel._native import Engine
from hvd_kernel.config import SETTINGS, ClusterSpec, elsewhere, engine_options, start_timeout
from hvd_kernel.errors import ConfigError


def test_nothing_set_leaves_the_choice_to_the_core() -> None:
    assert engine_options({}) == {}
    assert engine_options({"HVD_TRANSPORT": ""}) == {}
    assert start_timeout({}) == 30.0
    assert start_timeout({}, 600.0) == 600.0
    assert start_timeout({"HOROVOD_START_TIMEOUT": "7"}, 600.0) == 7.0


@pytest.mark.parametrize(
    ("env", "options"),
    [
        ({"HVD_TRANSPORT": "tcp"}, {"transport": "tcp"}),
        ({"HOROVOD_FUSION_THRESHOLD": "0"}, {"fusion_threshold": "0"}),
        ({"HOROVOD_FUSION_THRESHOLD": "1", "HVD_FUSION_THRESHOLD": "2"}, {"fusion_threshold": "2"}),
        ({"HOROVOD_CYCLE_TIME": "3.5"}, {"cycle_time_ms": "3.5"}),
        ({"HOROVOD_GLOO_TIMEOUT_SECONDS": "7"}, {"start_timeout_s": "7.0"}),
        ({"HVD_SLOTS": "8", "HVD_SLOT_BYTES": "65536"}, {"slots": "8", "slot_bytes": "65536"}),
        ({"HVD_TRANSPORT": "SHM"}, {"transport": "shm"}),
        (
            {"HOROVOD_SECRET_KEY": "a b", "HOROVOD_TIMELINE": "/tmp/t.json"},
            {"secret": "a b", "timeline": "/tmp/t.json"},
        ),
        ({"HOROVOD_TIMELINE": "DYNAMIC", "HOROVOD_TIMELINE_MARK_CYCLES": "1"}, {"mark_cycles": "1"}),
        ({"HOROVOD_DISABLE_GROUP_FUSION": "1"}, {"group_fusion": "0"}),
        ({"HOROVOD_DISABLE_GROUP_FUSION": "0"}, {"group_fusion": "1"}),
        ({"HOROVOD_HIERARCHICAL_ALLREDUCE": "False"}, {"hierarchical_allreduce": "0"}),
        (
            {"HOROVOD_STALL_CHECK_TIME_SECONDS": "5", "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": "10"},
            {"stall_warning_s": "5.0", "stall_shutdown_s": "10.0"},
        ),
        (
            {"HOROVOD_STALL_CHECK_TIME_SECONDS": "5", "HOROVOD_STALL_CHECK_DISABLE": "1"},
            {"stall_warning_s": "0"},
        ),
        (
            {"HOROVOD_STALL_CHECK_TIME_SECONDS": "5", "HOROVOD_STALL_CHECK_DISABLE": "0"},
            {"stall_warning_s": "5.0"},
        ),
        (
            {"HOROVOD_CACHE_CAPACITY": "0", "HOROVOD_THREAD_AFFINITY": "0, 2"},
            {"cache_capacity": "0", "thread_affinity": "0,2"},
        ),
        (
            {
                "HOROVOD_AUTOTUNE": "1",
                "HOROVOD_AUTOTUNE_LOG": "/tmp/a.csv",
                "HOROVOD_AUTOTUNE_WARMUP_SAMPLES": "1",
                "HOROVOD_AUTOTUNE_STEPS_PER_SAMPLE": "2",
                "HOROVOD_AUTOTUNE_BAYES_OPT_MAX_SAMPLES": "3",
                "HOROVOD_AUTOTUNE_GAUSSIAN_PROCESS_NOISE": "0.5",
            },
            {
                "autotune": "1",
                "autotune_log": "/tmp/a.csv",
                "autotune_warmup_samples": "1",
                "autotune_steps_per_sample": "2",
                "autotune_max_samples": "3",
                "autotune_noise": "0.5",
            },
        ),
        (
            {
                "HVD_ALLREDUCE_ALGORITHM": "ring",
                "HVD_TCP_STREAMS": "4",
                "HVD_FANOUT": "8",
                "HVD_CALLER_RUNS_BYTES": "0",
            },
            {"allreduce_algorithm": "ring", "tcp_streams": "4", "fanout": "8", "caller_runs_bytes": "0"},
        ),
        ({"HVD_STOP_WARNING": "1", "HVD_STOP_ABORT": "0"}, {"stop_warning_s": "1.0", "stop_abort_s": "0.0"}),
        ({"HVD_NET_TIMEOUT": "2"}, {"net_timeout_s": "2.0"}),
        ({"HOROVOD_CONTROLLER": "gloo", "HOROVOD_CPU_OPERATIONS": "MPI", "HOROVOD_TORUS_ALLREDUCE": "0"}, {}),
        ({"HOROVOD_NUM_NCCL_STREAMS": "2", "HOROVOD_ELASTIC": "1", "HOROVOD_LOG_LEVEL": "DEBUG"}, {}),
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
        ("HVD_TCP_STREAMS", "65"),
        ("HVD_SLOTS", "65"),
        ("HOROVOD_CYCLE_TIME", "60001"),
        ("HOROVOD_AUTOTUNE", "maybe"),
        ("HOROVOD_AUTOTUNE_GAUSSIAN_PROCESS_NOISE", "1.5"),
        ("HOROVOD_THREAD_AFFINITY", "0,,1"),
        ("HOROVOD_STALL_CHECK_DISABLE", "2"),
        ("HOROVOD_STALL_CHECK_TIME_SECONDS", "-1"),
        ("HVD_ALLREDUCE_ALGORITHM", "tree"),
        ("HOROVOD_DYNAMIC_PROCESS_SETS", "some"),
        ("HVD_DYNAMIC_PROCESS_SETS", "2"),
        ("HOROVOD_LOG_LEVEL", "loud"),
    ],
)
def test_bad_values_name_the_variable(variable: str, value: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(f"{variable}={value!r} cannot be used: it must be ")):
        engine_options({variable: value})


@pytest.mark.parametrize(
    ("variable", "value", "reason", "remedy"),
    [
        ("HOROVOD_TORUS_ALLREDUCE", "1", "NCCL", "HVD_ALLREDUCE_ALGORITHM=hierarchical"),
        ("HOROVOD_CPU_OPERATIONS", "ccl", "oneCCL", "HVD_TRANSPORT=mpi"),
        ("HOROVOD_CONTROLLER", "zookeeper", "the core itself", "HVD_BOOTSTRAP"),
    ],
)
def test_refused_values_say_why_and_what_to_do(variable: str, value: str, reason: str, remedy: str) -> None:
    with pytest.raises(ConfigError) as caught:
        engine_options({variable: value})
    assert str(caught.value).startswith(f"{variable}={value!r} cannot be honoured: ")
    assert reason in str(caught.value)
    assert remedy in str(caught.value).partition("What to do: ")[2]


@pytest.mark.parametrize(
    ("env", "value"),
    [
        ({}, "0"),
        ({"HOROVOD_DYNAMIC_PROCESS_SETS": "On"}, "1"),
        ({"HVD_DYNAMIC_PROCESS_SETS": "0", "HOROVOD_DYNAMIC_PROCESS_SETS": "1"}, "0"),
    ],
)
def test_settings_of_other_parts(env: dict[str, str], value: str) -> None:
    assert elsewhere("HVD_DYNAMIC_PROCESS_SETS", env) == value


def test_the_core_knows_every_key() -> None:
    with pytest.raises(ValueError, match="known are ") as caught:
        Engine(0, 1, lambda mine: [mine], {"unknown": "1"})
    assert {setting.key for setting in SETTINGS} == set(str(caught.value).partition("known are ")[2].split(", "))


def test_the_core_takes_every_default_and_what_the_checks_let_through() -> None:
    defaults = {s.variables[0]: s.default for s in SETTINGS if s.default}
    options = engine_options(defaults)
    assert set(options) == {s.key for s in SETTINGS if s.default}
    engine = Engine(0, 1, lambda mine: [mine], options)
    engine.shutdown()


def test_cluster_spec() -> None:
    assert ClusterSpec(4) == ClusterSpec(n=4, hosts="", hostfile="", mpi_args=(), start_timeout_s=120.0)
    for wrong in ({"n": 0}, {"n": 2, "hosts": "a:2", "hostfile": "b"}, {"n": 2, "start_timeout_s": 0}):
        with pytest.raises(ConfigError):
            ClusterSpec(**wrong)  # type: ignore[arg-type]
