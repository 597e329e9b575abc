"""The command line of hvdrun: every flag of Horovod's is understood, honoured or refused with a remedy."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest
from hvdtest import golden
from hvdtest.offenders import ROOT

from hvd_kernel.errors import ConfigError, UsageError
from hvd_kernel.jobs.knobs import KNOBS
from hvd_kernel.launch.cli import elastic, options_page
from hvd_kernel.launch.cli.flags import parse, parser, read_config_file
from hvd_kernel.launch.elastic.options import ElasticOptions
from hvd_kernel.settings import SETTINGS

TABLE = Path(__file__).parent / "hvdrun_lines.json"
LINES = {title: [case["line"].split() for case in cases] for title, cases in json.loads(TABLE.read_text()).items()}


@golden.titles(TABLE)
def test_line_gives_its_request_or_its_error(table: Path, title: str) -> None:
    golden.check(table, title, request_of)


def request_of(case: golden.Case) -> object:
    """Return the fields of a line's request that are set, or the error."""
    try:
        request = parse(shlex.split(case["line"]))
    except (ConfigError, UsageError) as error:
        return {"error": str(error)}
    found = golden.without_defaults(request)
    assert isinstance(found, dict)
    return {name: shlex.join(value) if name == "command" else value for name, value in found.items()}


def test_the_page_is_the_tables() -> None:
    written = (ROOT / "docs" / "hvdrun_options.md").read_text()
    assert written == options_page.page(), (
        "write it again: python -m hvd_kernel.launch.cli.options_page > docs/hvdrun_options.md"
    )


def test_all_flags_of_variables_are_in_the_table() -> None:
    tested = {word.partition("=")[0] for words in LINES["variables of the ranks"] for word in words}
    assert {flag for knob in KNOBS for flag in (*knob.flags, *knob.off)} <= tested


def test_help_of_a_flag_is_that_of_its_variable() -> None:
    said = " ".join(parser().format_help().split())
    rows = {variable: row for row in SETTINGS for variable in row.variables}
    assert f"--cache-capacity CAPACITY {rows['HOROVOD_CACHE_CAPACITY'].doc} (default: 1024)" in said
    assert f"--autotune {rows['HOROVOD_AUTOTUNE'].doc}" in said
    assert "MB in one fused operation; 0: never fuse (default: 128)" in said, "the flag's unit is its own"
    assert rows["HOROVOD_FUSION_THRESHOLD"].default == str(128 << 20)
    assert rows["HOROVOD_STALL_CHECK_DISABLE"].default == "0", "the flag says the opposite of the variable"


def test_all_flags_of_elastic_jobs_are_in_the_table() -> None:
    tested = {word for words in LINES["elastic jobs"] for word in words}
    assert {flag for row in elastic.FLAGS for flag in row.flags} - tested == {"--max-np"}


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


def test_missing_configuration_file() -> None:
    with pytest.raises(ConfigError, match=r"the configuration file /no/file cannot be read"):
        read_config_file("/no/file")
