"""Settings from the environment, and the shape of a cluster."""

from __future__ import annotations

import re

import pytest

from hvd_kernel._native import Engine, LocalHub
from hvd_kernel.errors import ConfigError
from hvd_kernel.processes.cluster_spec import ClusterSpec
from hvd_kernel.settings import CORE_SETTINGS, horovod
from hvd_kernel.settings.lookup import engine_options, log_substitutions, start_timeout
from hvd_kernel.settings.lookup import value as value_of
from hvd_kernel.settings.setting import Setting


def test_nothing_set_leaves_the_choice_to_the_core() -> None:
    assert engine_options({}) == {}
    assert engine_options({"HVD_TRANSPORT": ""}) == {}
    assert start_timeout({}) == 30.0
    assert start_timeout({}, 600.0) == 600.0
    assert start_timeout({"HOROVOD_START_TIMEOUT": "7"}, 600.0) == 7.0


OFF = {"group_fusion": "0", "stall_warning_s": "0"}


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
        ({"HOROVOD_CPU_OPERATIONS": "CCL", "HOROVOD_TORUS_ALLREDUCE": "1", "HOROVOD_CONTROLLER": "zookeeper"}, {}),
        ({"HOROVOD_GPU_OPERATIONS": "MPI"}, {}),
        ({"HOROVOD_GPU_OPERATIONS": "NCCL"}, {"gpu_operations": "prefer-nccl"}),
        ({"HOROVOD_GPU_ALLREDUCE": "NCCL"}, {"gpu_operations": "prefer-nccl"}),
        ({"HOROVOD_GPU_ALLREDUCE": "MPI", "HOROVOD_GPU_BROADCAST": "NCCL"}, {}),
        ({"HOROVOD_GPU_OPERATIONS": "ring", "HOROVOD_GPU_ALLREDUCE": "NCCL"}, {"gpu_operations": "ring"}),
        ({"HOROVOD_GPU_OPERATIONS": "Ring"}, {"gpu_operations": "ring"}),
        ({"HVD_GPU_OPERATIONS": "NCCL", "HOROVOD_GPU_OPERATIONS": "MPI"}, {"gpu_operations": "nccl"}),
        ({"HOROVOD_GLOO_IFACE": "no-such-0, lo,no-such-1"}, {"tcp_interface": "lo"}),
        ({"HOROVOD_GLOO_IFACE": "no-such-0,no-such-1"}, {"tcp_interface": "no-such-0"}),
        ({"HOROVOD_AUTOTUNE": "2", "HOROVOD_TIMELINE_MARK_CYCLES": " -1x"}, {"autotune": "1", "mark_cycles": "1"}),
        ({"HOROVOD_AUTOTUNE": "maybe", "HOROVOD_TIMELINE_MARK_CYCLES": "00"}, {"autotune": "0", "mark_cycles": "0"}),
        ({"HOROVOD_DISABLE_GROUP_FUSION": "7", "HOROVOD_STALL_CHECK_DISABLE": "2"}, OFF),
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
        ("HVD_AUTOTUNE", "maybe"),
        ("HOROVOD_AUTOTUNE_GAUSSIAN_PROCESS_NOISE", "1.5"),
        ("HOROVOD_THREAD_AFFINITY", "0,,1"),
        ("HOROVOD_THREAD_AFFINITY", "0,1024"),
        ("HVD_STALL_CHECK_DISABLE", "2"),
        ("HOROVOD_STALL_CHECK_TIME_SECONDS", "-1"),
        ("HVD_ALLREDUCE_ALGORITHM", "tree"),
        ("HVD_DYNAMIC_PROCESS_SETS", "some"),
        ("HVD_DYNAMIC_PROCESS_SETS", "2"),
        ("HOROVOD_LOG_LEVEL", "loud"),
    ],
)
def test_bad_values_name_the_variable(variable: str, value: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(f"{variable}={value!r} cannot be used: it must be ")):
        engine_options({variable: value})


LIMITS = (
    "-1",
    "0",
    "1",
    "65",
    "60001",
    "2147483647",
    "2147483648",
    str(2**63 - 1),
    str(2**63),
    "9" * 30,
    "1e9",
    "1e10",
)


@pytest.mark.parametrize(
    "row", [row for row in CORE_SETTINGS if row.check.type in {"Int", "Float"}], ids=lambda row: row.key
)
def test_a_number_that_the_core_refuses_is_refused_by_variable(row: Setting) -> None:
    """The core names its own key, which nobody has set."""
    variable, refused = row.variables[-1], 0
    for text in LIMITS:
        try:
            options = engine_options({variable: text})
        except ConfigError as error:
            assert f"{variable}={text!r} cannot be used: it must be " in str(error)  # noqa: PT017 - not each is refused
            refused += 1
        else:
            LocalHub(1, options)
    assert refused


def test_the_range_of_a_setting_is_named() -> None:
    with pytest.raises(ConfigError, match=r"HOROVOD_CACHE_CAPACITY='2147483648' .* number from 0 to 2147483647 \("):
        engine_options({"HOROVOD_CACHE_CAPACITY": "2147483648"})
    with pytest.raises(ConfigError, match=r"HVD_STOP_ABORT='1e10' .* must be a number from 0 to 1000000000 \("):
        engine_options({"HVD_STOP_ABORT": "1e10"})
    with pytest.raises(ConfigError, match=r"HVD_START_TIMEOUT='0' .* must be a number above 0, at most 1000000000 \("):
        engine_options({"HVD_START_TIMEOUT": "0"})


@pytest.mark.parametrize(
    ("variable", "value", "instead"),
    [
        ("HOROVOD_TORUS_ALLREDUCE", "1", "allreduce runs as HVD_ALLREDUCE_ALGORITHM says (auto)"),
        ("HOROVOD_CPU_OPERATIONS", "ccl", "the core's own operations run"),
        ("HOROVOD_CONTROLLER", "zookeeper", "ranks negotiate through the core itself"),
        ("HOROVOD_GPU_OPERATIONS", "MPI", "the core chooses the backend of operations on GPUs"),
        ("HOROVOD_GLOO_IFACE", "no-such-0,lo", "one network interface: lo, the first of them that is here"),
        ("HOROVOD_ELASTIC", "maybe", "read as 0"),
    ],
)
def test_what_cannot_be_done_is_told_once_with_what_is_done(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, variable: str, value: str, instead: str
) -> None:
    """A variable that an image has left there ended init()."""
    monkeypatch.setattr("hvd_kernel.settings.lookup._logged", set())
    log_substitutions({variable: value})
    log_substitutions({variable: value})
    (said,) = (record.getMessage() for record in caplog.records)
    assert said.startswith(f"hvd_kernel: {variable}={value!r}: ")
    assert instead in said


def test_nccl_of_horovods_images_is_preferred_without_a_warning() -> None:
    """All that its Dockerfiles and its pages on installation set, at once."""
    frameworks = ("PYTORCH", "TENSORFLOW", "MXNET", "MPI", "GLOO", "NVTX")
    image = {f"HOROVOD_{word}_{name}": "1" for word in ("WITH", "WITHOUT") for name in frameworks} | {
        "HOROVOD_GPU_OPERATIONS": "NCCL",
        "HOROVOD_GPU_ALLREDUCE": "NCCL",
        "HOROVOD_GPU_BROADCAST": "NCCL",
        "HOROVOD_GPU_ALLGATHER": "MPI",
        "HOROVOD_CPU_OPERATIONS": "MPI",
        "HOROVOD_GPU": "CUDA",
        "HOROVOD_CUDA_HOME": "/usr/local/cuda",
        "HOROVOD_NCCL_HOME": "/usr/local/nccl",
        "HOROVOD_NCCL_LINK": "SHARED",
        "HOROVOD_BUILD_ARCH_FLAGS": "-march=native",
        "HOROVOD_BUILD_CUDA_CC_LIST": "60,70,75",
        "HOROVOD_ALLOW_MIXED_GPU_IMPL": "1",
        "HOROVOD_CMAKE": "/usr/bin/cmake",
        "HOROVOD_MPICXX_SHOW": "mpicxx --showme",
        "HOROVOD_DEBUG": "1",
        "CUDNN_VERSION": "8.1.1.33-1+cuda11.2",
        "NCCL_VERSION": "2.8.4-1+cuda11.2",
    }
    assert (engine_options(image), horovod.read(image)[1]) == ({"gpu_operations": "prefer-nccl"}, [])


@pytest.mark.parametrize(
    ("env", "value"),
    [
        ({}, "0"),
        ({"HOROVOD_DYNAMIC_PROCESS_SETS": "On"}, "1"),
        ({"HOROVOD_DYNAMIC_PROCESS_SETS": "2"}, "1"),
        ({"HOROVOD_DYNAMIC_PROCESS_SETS": "some"}, "0"),
        ({"HVD_DYNAMIC_PROCESS_SETS": "0", "HOROVOD_DYNAMIC_PROCESS_SETS": "1"}, "0"),
    ],
)
def test_settings_of_the_package(env: dict[str, str], value: str) -> None:
    assert value_of("HVD_DYNAMIC_PROCESS_SETS", env) == value


def test_the_core_knows_every_key() -> None:
    with pytest.raises(ValueError, match="known are ") as caught:
        Engine(0, 1, lambda mine: [mine], {"unknown": "1"})
    known = set(str(caught.value).partition("known are ")[2].split(", "))
    assert {setting.key for setting in CORE_SETTINGS} == known - {"place"}, "which is an elastic driver's to say"


def test_core_accepts_defaults_and_all_valid_values() -> None:
    defaults = {s.variables[0]: s.default for s in CORE_SETTINGS if s.default}
    options = engine_options(defaults)
    assert set(options) == {s.key for s in CORE_SETTINGS if s.default}
    engine = Engine(0, 1, lambda mine: [mine], options)
    engine.shutdown()


def test_cluster_spec() -> None:
    assert ClusterSpec(4) == ClusterSpec(n=4, hosts="", hostfile="", mpi_args=(), start_timeout_s=120.0)
    for wrong in ({"n": 0}, {"n": 2, "hosts": "a:2", "hostfile": "b"}, {"n": 2, "start_timeout_s": 0}):
        with pytest.raises(ConfigError):
            ClusterSpec(**wrong)  # type: ignore[arg-type]
