"""The command line of hvdrun: every flag of Horovod's is understood, honoured or refused with a remedy."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from hvd_kernel.errors import ConfigError, UsageError
from hvd_kernel.jobs.knobs import KNOBS
from hvd_kernel.launch.cli import elastic
from hvd_kernel.launch.cli.flags import parse, parser, read_config_file
from hvd_kernel.launch.elastic.options import ElasticOptions
from hvd_kernel.launch.placement import Host
from hvd_kernel.settings import SETTINGS

COMMAND = ["python", "train.py", "-np", "9", "--hosts", "x"]
VARIABLES = [
    ("--fusion-threshold-mb 64", {"HVD_FUSION_THRESHOLD": "", "HOROVOD_FUSION_THRESHOLD": str(64 << 20)}),
    ("--fusion-threshold-mb=0", {"HVD_FUSION_THRESHOLD": "", "HOROVOD_FUSION_THRESHOLD": "0"}),
    ("--cycle-time-ms 3.5", {"HVD_CYCLE_TIME": "", "HOROVOD_CYCLE_TIME": "3.5"}),
    ("--cache-capacity 0", {"HVD_CACHE_CAPACITY": "", "HOROVOD_CACHE_CAPACITY": "0"}),
    ("--hierarchical-allreduce", {"HVD_HIERARCHICAL_ALLREDUCE": "", "HOROVOD_HIERARCHICAL_ALLREDUCE": "1"}),
    ("--no-hierarchical-allreduce", {"HVD_HIERARCHICAL_ALLREDUCE": "", "HOROVOD_HIERARCHICAL_ALLREDUCE": "0"}),
    ("--hierarchical-allgather", {"HVD_HIERARCHICAL_ALLGATHER": "", "HOROVOD_HIERARCHICAL_ALLGATHER": "1"}),
    ("--no-hierarchical-allgather", {"HVD_HIERARCHICAL_ALLGATHER": "", "HOROVOD_HIERARCHICAL_ALLGATHER": "0"}),
    ("--torus-allreduce", {"HOROVOD_TORUS_ALLREDUCE": "1"}),
    ("--no-torus-allreduce", {"HOROVOD_TORUS_ALLREDUCE": "0"}),
    ("--autotune", {"HVD_AUTOTUNE": "", "HOROVOD_AUTOTUNE": "1"}),
    ("--no-autotune", {"HVD_AUTOTUNE": "", "HOROVOD_AUTOTUNE": "0"}),
    ("--autotune-log-file /t.csv", {"HVD_AUTOTUNE_LOG": "", "HOROVOD_AUTOTUNE_LOG": "/t.csv"}),
    ("--autotune-warmup-samples 1", {"HVD_AUTOTUNE_WARMUP_SAMPLES": "", "HOROVOD_AUTOTUNE_WARMUP_SAMPLES": "1"}),
    ("--autotune-steps-per-sample 2", {"HVD_AUTOTUNE_STEPS_PER_SAMPLE": "", "HOROVOD_AUTOTUNE_STEPS_PER_SAMPLE": "2"}),
    (
        "--autotune-bayes-opt-max-samples 3",
        {"HVD_AUTOTUNE_BAYES_OPT_MAX_SAMPLES": "", "HOROVOD_AUTOTUNE_BAYES_OPT_MAX_SAMPLES": "3"},
    ),
    (
        "--autotune-gaussian-process-noise 0.5",
        {"HVD_AUTOTUNE_GAUSSIAN_PROCESS_NOISE": "", "HOROVOD_AUTOTUNE_GAUSSIAN_PROCESS_NOISE": "0.5"},
    ),
    ("--timeline-filename /t.json", {"HVD_TIMELINE": "", "HOROVOD_TIMELINE": "/t.json"}),
    ("--timeline-mark-cycles", {"HVD_TIMELINE_MARK_CYCLES": "", "HOROVOD_TIMELINE_MARK_CYCLES": "1"}),
    ("--no-timeline-mark-cycles", {"HVD_TIMELINE_MARK_CYCLES": "", "HOROVOD_TIMELINE_MARK_CYCLES": "0"}),
    ("--stall-check", {"HVD_STALL_CHECK_DISABLE": "", "HOROVOD_STALL_CHECK_DISABLE": "0"}),
    ("--no-stall-check", {"HVD_STALL_CHECK_DISABLE": "", "HOROVOD_STALL_CHECK_DISABLE": "1"}),
    (
        "--stall-check-warning-time-seconds 5",
        {"HVD_STALL_CHECK_TIME_SECONDS": "", "HOROVOD_STALL_CHECK_TIME_SECONDS": "5"},
    ),
    (
        "--stall-check-shutdown-time-seconds 9",
        {"HVD_STALL_SHUTDOWN_TIME_SECONDS": "", "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": "9"},
    ),
    ("--mpi-threads-disable", {"HOROVOD_MPI_THREADS_DISABLE": "1"}),
    ("--no-mpi-threads-disable", {"HOROVOD_MPI_THREADS_DISABLE": "0"}),
    ("--num-nccl-streams 2", {"HOROVOD_NUM_NCCL_STREAMS": "2"}),
    ("--thread-affinity 0,2", {"HVD_THREAD_AFFINITY": "", "HOROVOD_THREAD_AFFINITY": "0,2"}),
    ("--gloo-timeout-seconds 7", {"HVD_START_TIMEOUT": "", "HOROVOD_GLOO_TIMEOUT_SECONDS": "7"}),
    ("--mps", {"HVD_MPS": "1"}),
    ("--no-mps", {"HVD_MPS": "0"}),
    ("--log-level DEBUG", {"HVD_LOG_LEVEL": "", "HOROVOD_LOG_LEVEL": "DEBUG"}),
    ("--log-with-timestamp", {"HVD_LOG_HIDE_TIME": "", "HOROVOD_LOG_HIDE_TIME": "0"}),
    ("--log-without-timestamp", {"HVD_LOG_HIDE_TIME": "", "HOROVOD_LOG_HIDE_TIME": "1"}),
    ("--log-hide-timestamp", {"HVD_LOG_HIDE_TIME": "", "HOROVOD_LOG_HIDE_TIME": "1"}),
    ("--no-log-hide-timestamp", {"HVD_LOG_HIDE_TIME": "", "HOROVOD_LOG_HIDE_TIME": "0"}),
    ("--tcp", {"NCCL_IB_DISABLE": "1"}),
    ("--start-timeout 60", {"HVD_START_TIMEOUT": "", "HOROVOD_START_TIMEOUT": "60"}),
    ("--disable-cache --verbose --gloo", {}),
    ("--fusion 64", {"HVD_FUSION_THRESHOLD": "", "HOROVOD_FUSION_THRESHOLD": str(64 << 20)}),
    ("--torus", {"HOROVOD_TORUS_ALLREDUCE": "1"}),
]
FIELDS = [
    ("", {"np": 0, "hosts": None}),  # where it runs says it
    ("-np 4", {"np": 4}),
    ("--num-proc 4", {"np": 4}),
    ("-np 4 -H a:2,b:2", {"np": 4, "hosts": "a:2,b:2"}),
    ("-n 4 -host f", {"np": 4, "hostfile": "f"}),
    ("--num-p=4 --ssh-p 22 -pre", {"np": 4, "ssh_port": 22, "timestamp": True}),
    ("-np 4 --verb --disable", {"np": 4, "verbose": True}),
    ("-H a,b:2 --slots 3", {"np": 5, "hosts": "a:3,b:2"}),
    ("-np 1 -H a,b:2 --slots-per-host 3", {"np": 1, "hosts": "a:3,b:2", "warnings": ()}),
    ("--hosts a:2,b:3", {"np": 5, "hosts": "a:2,b:3"}),
    ("-np 1 -hostfile f", {"hostfile": "f"}),
    ("-np 1 --hostfile f", {"hostfile": "f"}),
    ("-np 1 -p 22 -i k", {"ssh_port": 22, "ssh_identity_file": "k"}),
    ("-np 1 --ssh-port 22 --ssh-identity-file k", {"ssh_port": 22, "ssh_identity_file": "k"}),
    ("-np 1 --network-interfaces eth0,eth1", {"interfaces": ("eth0", "eth1")}),
    ("-np 1 --network-interface eth0 --network-interface eth1", {"interfaces": ("eth0", "eth1")}),
    ("-np 1 --output-filename d", {"output_filename": "d"}),
    ("-np 1 -prefix-timestamp", {"timestamp": True}),
    ("-np 1 --prefix-output-with-timestamp", {"timestamp": True}),
    ("-np 1 --verbose", {"verbose": True}),
    ("-np 1 --start-timeout 9", {"start_timeout_s": 9.0}),
    ("-np 1 --mpi", {"use_mpi": True}),
    ("-np 1 --mpi --mpi-args=--display=map", {"mpi_args": ("--display=map",)}),
]


def test_a_command_keeps_its_own_flags() -> None:
    assert parse(["-np", "2", *COMMAND]).command == COMMAND
    assert parse(["-np", "2", "--verbose", "--", "-odd", "x"]).command == ["-odd", "x"]


@pytest.mark.parametrize(("words", "env"), VARIABLES, ids=[words for words, _ in VARIABLES])
def test_variables(words: str, env: dict[str, str]) -> None:
    assert parse(["-np", "2", *words.split(), *COMMAND]).env == env


@pytest.mark.parametrize(("words", "fields"), FIELDS, ids=[words for words, _ in FIELDS])
def test_fields(words: str, fields: dict[str, object]) -> None:
    request = parse([*words.split(), *COMMAND])
    assert {name: getattr(request, name) for name in fields} == fields
    assert request.command == COMMAND


def test_every_variable_flag_is_in_the_test() -> None:
    tested = {word.partition("=")[0] for words, _ in VARIABLES for word in words.split()}
    assert {flag for knob in KNOBS for flag in (*knob.flags, *knob.off)} <= tested


def test_help_of_a_flag_is_that_of_its_variable() -> None:
    said = " ".join(parser().format_help().split())
    rows = {variable: row for row in SETTINGS for variable in row.variables}
    assert f"--cache-capacity CAPACITY {rows['HOROVOD_CACHE_CAPACITY'].doc} (default: 1024)" in said
    assert f"--autotune {rows['HOROVOD_AUTOTUNE'].doc}" in said
    assert "MB in one fused operation; 0: never fuse (default: 128)" in said, "the flag's unit is its own"
    assert rows["HOROVOD_FUSION_THRESHOLD"].default == str(128 << 20)
    assert rows["HOROVOD_STALL_CHECK_DISABLE"].default == "0", "the flag says the opposite of the variable"


def test_values_with_dashes_and_blanks() -> None:
    request = parse(["-np", "1", "--mpi", "--binding-args", "--bind-to core", "--mpi-args", "-mca btl '^openib'", "x"])
    assert request.mpi_args == ("--bind-to", "core", "-mca", "btl", "^openib")


@pytest.mark.parametrize(
    ("words", "action"),
    [
        ("-v", "version"),
        ("--version", "version"),
        ("-cb", "check_build"),
        ("--check-build", "check_build"),
        ("--install-horovodrun", "install_horovodrun"),
        ("--install-mpirun folder", "install_mpirun"),
    ],
)
def test_actions_need_no_command(words: str, action: str) -> None:
    assert parse(words.split()).action == action


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("", "no command to run, e.g. hvdrun -np 4 python train.py"),
        ("-np 2", "no command to run"),
        ("-np two x", "-np/--num-proc: 'two' must be a whole number, at least 1"),
        ("-np 0 x", "'0' must be a whole number, at least 1"),
        ("-np4 x", "write -np 4, with a space"),
        ("-np", "-np/--num-proc: expected one argument"),
        ("-np 2 --speed x", "unrecognized arguments: --speed. `hvdrun --help` lists the flags"),
        ("-np 2 -p 99999 x", "'99999' must be a port, from 1 to 65535"),
        ("-np 2 --start-timeout 0 x", "'0' must be seconds, above 0"),
        ("-np 2 --cycle-time-ms soon x", "--cycle-time-ms: 'soon' cannot be used: it must be a number from 0"),
        ("-np 2 --fusion-threshold-mb -1 x", "--fusion-threshold-mb"),
        ("-np 2 --fusion-threshold-mb 1.5 x", "it must be a whole number of megabytes, at least 0"),
        ("-np 2 --autotune-gaussian-process-noise 2 x", "it must be a number from 0 to 1"),
        ("-np 2 --log-level LOUD x", "it must be one of trace, debug, info, warning, error, fatal"),
        ("-np 2 --thread-affinity a x", "it must be numbers of cores"),
        ("-np 2 --gloo --mpi x", "--gloo and --mpi exclude each other"),
        ("-np 2 -H a:2 --hostfile f x", "-H and --hostfile say the same thing"),
        ("-np 2 --host a:2 x", "--host may be --hosts or --hostfile or --host-discovery-script: write it out"),
        ("--v x", "--v may be --version or --verbose: write it out"),
        ("-np 2 --min-np two x", "'two' cannot be used: it must be a whole number from 1 to 2147483647"),
        ("-np 2 --min-np 0 x", "'0' cannot be used: it must be a whole number from 1 to 2147483647"),
        ("-np 2 --elastic-timeout 0 x", "'0' cannot be used: it must be a number above 0"),
        ("-np 2 --min-np 1 --mpi x", "--mpi starts a job that keeps its size: leave it out beside --min-num-proc"),
        ("-np 2 --host-discovery-script f --jsrun x", "--jsrun starts a job that keeps its size"),
    ],
)
def test_wrong_use_names_the_remedy(words: str, said: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse(words.split())
    assert str(caught.value).startswith("hvdrun: ")
    assert said in str(caught.value)


ELASTIC = [
    ("-np 4 --min-np 2", ElasticOptions(4, 2, hosts=(Host("localhost", 4),))),
    ("-np 4 --min-num-proc 2 --max-num-proc 6 -H a:2,b:4", ElasticOptions(4, 2, 6, (Host("a", 2), Host("b", 4)))),
    ("--min-np 2 -H a:2,b:4", ElasticOptions(6, 2, hosts=(Host("a", 2), Host("b", 4)))),
    ("--min 2 --max 4 -H a,b --slots 3", ElasticOptions(4, 2, 4, (Host("a", 3), Host("b", 3)), slots=3)),
    ("-np 2 --host-discovery-script ./h.sh", ElasticOptions(2, 2, script="./h.sh")),
    ("--min-np 2 --host-d ./h.sh --slots-per-host 2", ElasticOptions(2, 2, script="./h.sh", slots=2)),
    (
        "-np 2 --host-discovery-script h --elastic-timeout 9 --reset-limit 0 --max-restarts 3 --discovery-interval 0.5",
        ElasticOptions(2, 2, script="h", timeout_s=9.0, reset_limit=0, max_restarts=3, interval_s=0.5),
    ),
    (
        "-np 2 --host-discovery-script h --blacklist-cooldown-range 10 100",
        ElasticOptions(2, 2, script="h", cooldown_s=(10, 100)),
    ),
    ("-np 2 --min-np 1 --spares 1", ElasticOptions(2, 1, hosts=(Host("localhost", 2),), spares=1)),
    (
        "-np 2 --host-discovery-script h --slot-failures 1 --host-failures 4 --hang-timeout 30",
        ElasticOptions(2, 2, script="h", slot_failures=1, host_failures=4, hang_s=30.0),
    ),
]


@pytest.mark.parametrize(("words", "options"), ELASTIC, ids=[words for words, _ in ELASTIC])
def test_a_job_whose_size_may_change(words: str, options: ElasticOptions) -> None:
    request = parse([*words.split(), *COMMAND])
    assert request.elastic == options
    assert (request.np, request.command, request.warnings) == (options.np, COMMAND, ())


def test_every_elastic_flag_is_in_the_tests_above() -> None:
    tested = {word for words, _ in ELASTIC for word in words.split()}
    assert {flag for row in elastic.FLAGS for flag in row.flags} - tested == {"--max-np"}


def test_the_ranks_of_an_elastic_job_know_its_timeout() -> None:
    env = parse(["-np", "2", "--min-np", "1", "--elastic-timeout", "7", "x"]).env
    assert env == {"HVD_ELASTIC_TIMEOUT": "", "HOROVOD_ELASTIC_TIMEOUT": "7.0"}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("-np 2 --min-np 4", "min_np=4 is above np=2"),
        ("-np 4 --min-np 2 --max-np 3", "max_np=3 is below np=4"),
        ("-np 4 --min-np 2 -H a:1,b:2", "np=4 ranks do not fit on 3 slots"),
        ("-np 2 -H a:2 --host-discovery-script h", "a host discovery script and hosts both name hosts"),
        ("--host-discovery-script h", "an elastic job needs np"),
        ("-np 2 --min-np 1 --blacklist-cooldown-range 0 9", "the cooldown range 0 9 cannot be used: two whole numbers"),
        ("-np 2 --min-np 1 --blacklist-cooldown-range 9 3601", "from 1 to 3600"),
        ("-np 2 --min-np 1 --blacklist-cooldown-range 9 8", "the lower first"),
    ],
)
def test_contradicting_options_of_elastic_jobs_are_refused(words: str, said: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(said)):
        parse([*words.split(), *COMMAND])


def test_the_section_elastic_of_a_configuration_file(tmp_path: Path) -> None:
    file = tmp_path / "c.yaml"
    file.write_text("""
elastic: {min_np: 2, max-np: 8, host_discovery_script: ./h.sh, elastic_timeout: 60, reset_limit: 5, max_restarts: 4,
  blacklist_cooldown_range: [10, 100], discovery_interval: 2, spares: 1, slot_failures: 5, host_failures: 3, hang-timeout: 45}
""")
    found, ignored = read_config_file(str(file))
    assert (set(found), ignored) == ({row.dest for row in elastic.FLAGS}, [])
    request = parse(["-np", "4", "--config-file", str(file), "--max-np", "6", "x"])
    assert request.elastic == ElasticOptions(4, 2, 6, (), "./h.sh", None, 60.0, 5, 4, (10, 100), 2.0, 1, 5, 3, 45.0)
    file.write_text("elastic: {min_np: 2, blacklist_cooldown_range: 10}")
    with pytest.raises(ConfigError, match=r"10 cannot be used: it must be 2 numbers, as 10 100"):
        read_config_file(str(file))


def test_help_names_every_flag() -> None:
    text = parser().format_help()
    for flag in ("-np", "--hosts", "--no-stall-check", "--mpi-args", "--host-discovery-script", "--check-build"):
        assert flag in text


def test_every_key_of_the_configuration_file(tmp_path: Path) -> None:
    file = tmp_path / "c.yaml"
    file.write_text("""
controller: MPI
params: {fusion_threshold_mb: 32, cycle_time_ms: 0.5, cache-capacity: 7, hierarchical_allreduce: true,
  hierarchical_allgather: False, torus_allreduce: no}
autotune: {enabled: true, log_file: l.csv, warmup_samples: 1, steps_per_sample: 2, bayes_opt_max_samples: 3,
  gaussian_process_noise: 0.1}
timeline: {filename: t.json, mark_cycles: true}
stall-check: {enabled: no, warning_time_seconds: 5, shutdown_time_seconds: 6}
library_options: {mpi_threads_disable: true, num_nccl_streams: 2, thread_affinity: 3, gloo_timeout_seconds: 4, mps: no}
logging: {level: INFO, with_timestamp: true}
""")
    found, ignored = read_config_file(str(file))
    assert ignored == []
    assert set(found) == {"controller", *(knob.dest for knob in KNOBS)}, "those of Horovod"
    request = parse(["-np", "1", "--config-file", str(file), "--cycle-time-ms", "9", "x"])
    assert request.use_mpi
    expected = {
        "HOROVOD_FUSION_THRESHOLD": str(32 << 20),
        "HOROVOD_CYCLE_TIME": "9",
        "HOROVOD_HIERARCHICAL_ALLGATHER": "0",
        "HOROVOD_AUTOTUNE": "1",
        "HOROVOD_STALL_CHECK_DISABLE": "1",
        "HOROVOD_LOG_HIDE_TIME": "0",
    }
    assert {name: request.env[name] for name in expected} == expected
    assert not parse(["-np", "1", "--gloo", "--config-file", str(file), "x"]).use_mpi


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a: " + 60 * "[", "here are more than 50 levels, or 5000 values"),
        ("params: {cycle_time_ms: soon}", "params.cycle_time_ms: 'soon' cannot be used: it must be a number"),
        ("params: 3", "must be a mapping of names to values, not 3"),
        ("controller: pigeon", "controller: 'pigeon' must be one of gloo, mpi"),
        ("a: [", "this is not YAML: "),
    ],
)
def test_a_wrong_configuration_file(tmp_path: Path, text: str, said: str) -> None:
    file = tmp_path / "c.yaml"
    file.write_text(text)
    with pytest.raises(ConfigError) as caught:
        read_config_file(str(file))
    assert said in str(caught.value)
    assert str(file) in str(caught.value)


def test_unknown_keys_of_a_configuration_file_are_ignored(tmp_path: Path) -> None:
    """Horovod's own sample file was refused."""
    file = tmp_path / "c.yaml"
    file.write_text("""# of an older Horovod
params:
  cycle_time_ms: 5
  speed: 3
timeline:
library_options: {num_nccl_streams: 1}
logging:
  level: INFO
  hide_timestamp: true
more: {a: 1}
""")
    found, ignored = read_config_file(str(file))
    assert found == {"params.cycle_time_ms": "5", "library_options.num_nccl_streams": "1", "logging.level": "INFO"}
    begins = [
        f"{file}:4:10: params.speed: is ignored: known: fusion_threshold_mb, ",
        f"{file}:9:19: logging.hide_timestamp: is ignored: did you mean 'with_timestamp'? known: level, ",
        f"{file}:10:7: more: is ignored: known: controller, params, ",
    ]
    assert [told[: len(begin)] for told, begin in zip(ignored, begins, strict=True)] == begins
    assert parse(["-np", "1", "--config-file", str(file), "x"]).warnings == tuple(ignored)
    file.write_text("# nothing\n---\n")
    assert read_config_file(str(file)) == ({}, [])


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("--mpi-args '-bind-to none'", "--mpi-args and --binding-args are left out: they are for mpiexec"),
        ("--gloo --binding-args=-v", "--mpi-args and --binding-args are left out: they are for mpiexec"),
        ("--reset-limit 4 --max-np 3", "--max-num-proc, --reset-limit are ignored: for elastic jobs, with --min-np"),
        ("--slots 4", "--slots-per-host is left out: it is for hosts of -H or --hostfile"),
        ("--num-nccl-streams 2", "--num-nccl-streams has no effect: each rank gives NCCL one stream"),
        ("--log-with-timestamp", ""),
        ("--mpi-threads-disable", "--mpi-threads-disable has no effect: the core itself knows"),
        ("--disable-cache --num-nccl-streams 1 --log-without-timestamp", ""),
        ("--log-hide-timestamp", ""),
    ],
)
def test_what_is_not_done_is_told_with_what_is_so(words: str, told: str) -> None:
    request = parse(["-np", "2", *shlex.split(words), *COMMAND])
    assert [sentence[: len(told)] for sentence in request.warnings] == [told] * bool(told)
    assert (request.mpi_args, request.command) == ((), COMMAND)


def test_a_configuration_file_that_is_not_there() -> None:
    with pytest.raises(ConfigError, match=r"the configuration file /no/file cannot be read"):
        read_config_file("/no/file")
