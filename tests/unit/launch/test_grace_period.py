"""Grace period: the user's, else the platform's with a margin."""

from __future__ import annotations

import pytest

from hvd_kernel.errors import ConfigError
from hvd_kernel.jobs.grace import GracePeriod, grace_period

CONFIG = """Configuration data as of 2026-11-30T10:00:00
KeepAliveTime           = SYSTEM_DEFAULT
KillOnBadExit           = 0
KillWait                = 120 sec
"""


@pytest.mark.parametrize(
    ("env", "config", "cancelled_s"),
    [
        ({}, CONFIG, 30.0),
        ({"SLURM_JOB_ID": "7"}, CONFIG, 118.0),
        ({"SLURM_JOB_ID": "7"}, None, 28.0),
        ({"SLURM_JOB_ID": "7"}, "KillWait = ?", 28.0),
        ({"SLURM_JOB_ID": "7"}, "KillWait = 2 sec", 1.0),
        ({"LSB_JOBID": "7"}, CONFIG, 8.0),
        ({"PBS_JOBID": "7"}, CONFIG, 8.0),
        ({"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, CONFIG, 28.0),
        ({"KUBERNETES_SERVICE_HOST": "10.0.0.1", "SLURM_JOB_ID": "7"}, CONFIG, 118.0),
    ],
)
def test_platform_decides_without_a_choice(env: dict[str, str], config: str | None, cancelled_s: float) -> None:
    assert grace_period(None, env, lambda _: config) == GracePeriod(5.0, cancelled_s)


@pytest.mark.parametrize(
    ("chosen_s", "env", "expected"),
    [
        (60.0, {"SLURM_JOB_ID": "7", "HVD_GRACE_PERIOD": "50"}, GracePeriod(60.0, 60.0)),
        (None, {"SLURM_JOB_ID": "7", "HVD_GRACE_PERIOD": "50"}, GracePeriod(50.0, 50.0)),
        (0.0, {}, GracePeriod(0.0, 0.0)),
    ],
)
def test_choice_wins(chosen_s: float | None, env: dict[str, str], expected: GracePeriod) -> None:
    assert grace_period(chosen_s, env, lambda _: CONFIG) == expected


def test_only_slurm_is_asked() -> None:
    asked: list[list[str]] = []
    for env in ({}, {"PBS_JOBID": "7"}, {"SLURM_JOB_ID": "7", "HVD_GRACE_PERIOD": "50"}, {"SLURM_JOB_ID": "7"}):
        grace_period(None, env, asked.append)
    assert asked == [["scontrol", "show", "config"]]


def test_invalid_choice_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"HVD_GRACE_PERIOD='soon' cannot be used: it must be "):
        grace_period(None, {"HVD_GRACE_PERIOD": "soon"})
