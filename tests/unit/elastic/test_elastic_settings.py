"""Settings of an elastic job's driver: from its options, else from the environment."""

from __future__ import annotations

import inspect

import pytest

from hvd_kernel.errors import ConfigError
from hvd_kernel.jobs.grace import GracePeriod
from hvd_kernel.launch.elastic.job import _settings
from hvd_kernel.launch.elastic.options import ElasticOptions
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


def test_settings_are_arguments_of_run() -> None:
    unsaid = {name: parameter.default for name, parameter in inspect.signature(run).parameters.items()}
    asked = parse_options(unsaid | {"np": 2, "min_np": 1, "slot_failures": 1, "host_failures": 3, "hang_timeout": 9.0})
    assert asked.elastic == ElasticOptions(
        2, 1, hosts=(Host("localhost", 2),), slot_failures=1, host_failures=3, hang_s=9.0
    )
    for name in ("slot_failures", "host_failures"):
        with pytest.raises(ConfigError, match=rf"run\({name}=0\) cannot be used: give a whole number, 1 or more"):
            parse_options(unsaid | {"np": 2, "min_np": 1, name: 0})
