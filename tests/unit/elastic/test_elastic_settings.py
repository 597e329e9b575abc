"""Settings of an elastic job's driver: from its options, else from the environment."""

from __future__ import annotations

import inspect
from types import SimpleNamespace
from typing import Any

import pytest

from hvd_kernel.errors import ConfigError
from hvd_kernel.jobs.grace import GracePeriod
from hvd_kernel.launch.cli.flags import parse
from hvd_kernel.launch.cli.main import _size
from hvd_kernel.launch.elastic.assignment import Assigned
from hvd_kernel.launch.elastic.job import _settings
from hvd_kernel.launch.elastic.options import ElasticOptions
from hvd_kernel.launch.elastic.workers import Orders, WorkerProcess
from hvd_kernel.launch.job_run import Job
from hvd_kernel.launch.placement import Host
from hvd_kernel.launch.run.api import parse_options, run

GRACE = GracePeriod(5.0, 30.0)
HOSTS = (Host("a", 2),)


def test_failures_until_a_slot_and_a_host_are_excluded() -> None:
    unsaid = _settings(ElasticOptions(2, 1, hosts=HOSTS), {}, GRACE)
    assert (unsaid.slot_failures, unsaid.host_failures) == (None, 2)
    env = {"HVD_SLOT_FAILURES": "5", "HVD_HOST_FAILURES": "4"}
    by_env = _settings(ElasticOptions(2, 1, hosts=HOSTS), env, GRACE)
    assert (by_env.slot_failures, by_env.host_failures) == (5, 4)
    by_flag = _settings(ElasticOptions(2, 1, hosts=HOSTS, slot_failures=1, host_failures=1), env, GRACE)
    assert (by_flag.slot_failures, by_flag.host_failures) == (1, 1)


@pytest.mark.parametrize(
    ("flag", "env", "least"), [(None, {}, 130), (900.0, {}, 900), (None, {"HVD_HANG_TIMEOUT": "1000"}, 1000)]
)
def test_the_driver_waits_longer_than_the_stall_monitor(flag: float | None, env: dict[str, str], least: float) -> None:
    assert _settings(ElasticOptions(2, 1, hosts=HOSTS, hang_s=flag), env, GRACE).patience_s > least


def test_workers_have_the_cores_of_the_allocation(monkeypatch: pytest.MonkeyPatch) -> None:
    nodes = {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "n[1-2]", "SLURM_JOB_CPUS_PER_NODE": "3,1"}
    for name, value in (nodes | {"SLURM_TASKS_PER_NODE": "1(x2)", "SLURM_NTASKS": "2"}).items():
        monkeypatch.setenv(name, value)
    size = _size(parse(["-np", "2", "--min-np", "1", "-H", "n1:1,n2:1", "true"]))
    assert size.cores == {"n1": 3, "n2": 1}
    orders = Orders(Job(["true"], 2, cores=size.cores), 0)
    cores = []
    for rank, name in enumerate(("n1", "n2", "elsewhere")):
        host: Any = SimpleNamespace(name=name, machine=name, handle=SimpleNamespace(remote=True))
        place = Assigned(rank, name, 0, None, 0, 1, rank, 3)
        cores.append(orders.start(WorkerProcess(rank, host, 0), place, 3, reads_stdin=False).allocated_cores)
    assert cores == [3, 1, 0]


def test_settings_are_arguments_of_run() -> None:
    unsaid = {name: parameter.default for name, parameter in inspect.signature(run).parameters.items()}
    asked = parse_options(unsaid | {"np": 2, "min_np": 1, "slot_failures": 1, "host_failures": 3, "hang_timeout": 9.0})
    assert asked.elastic == ElasticOptions(
        2, 1, hosts=(Host("localhost", 2),), slot_failures=1, host_failures=3, hang_s=9.0
    )
    for name in ("slot_failures", "host_failures"):
        with pytest.raises(ConfigError, match=rf"run\({name}=0\) cannot be used: give a whole number, 1 or more"):
            parse_options(unsaid | {"np": 2, "min_np": 1, name: 0})
