"""Settings from the environment, and the shape of a cluster."""

from __future__ import annotations

from pathlib import Path

import pytest
from hvdtest import golden

from hvd_kernel._native import Engine, LocalHub
from hvd_kernel.errors import ConfigError
from hvd_kernel.processes.cluster_spec import ClusterSpec
from hvd_kernel.settings import CORE_SETTINGS, horovod
from hvd_kernel.settings.lookup import engine_options, log_substitutions, start_timeout
from hvd_kernel.settings.lookup import value as value_of
from hvd_kernel.settings.setting import Setting


def test_start_timeout_of_the_environment_or_the_default() -> None:
    assert start_timeout({}) == 30.0
    assert start_timeout({}, 600.0) == 600.0
    assert start_timeout({"HOROVOD_START_TIMEOUT": "7"}, 600.0) == 7.0


@golden.titles(Path(__file__).parent / "environments.json")
def test_environment_gives_its_options_or_its_error(table: Path, title: str) -> None:
    golden.check(table, title, options_of)


def options_of(case: golden.Case) -> object:
    try:
        return engine_options(case["env"])
    except ConfigError as error:
        return {"error": str(error)}


LIMITS = [
    *("-1", "0", "1", "65", "60001", "2147483647", "2147483648"),
    str(2**63 - 1),
    str(2**63),
    "9" * 30,
    "1e9",
    "1e10",
]


@pytest.mark.parametrize(
    "row", [row for row in CORE_SETTINGS if row.check.type in {"Int", "Float"}], ids=lambda row: row.key
)
def test_number_refused_by_the_core_is_named_by_its_variable(row: Setting) -> None:
    """The core names its own key, which no user has set."""
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
def test_unsupported_variable_is_reported_once_with_the_effect(
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
