"""JaxState in real elastic jobs: a rank is killed while the others wait in a compiled step, and ranks join."""

from __future__ import annotations

from pathlib import Path

import pytest
from hvdtest.elastic_job import ElasticJob, Ended
from hvdtest.environments import environment, quiet

pytestmark = [pytest.mark.nightly, pytest.mark.mp, pytest.mark.timeout(300)]

TRAINING = Path(__file__).with_name("elastic_training.py")


class JaxJob(ElasticJob):
    """Its ranks are those of the newest JAX."""

    def command(self, *flags: str) -> list[str]:
        *most, _python, _isolated, _script, plan = super().command(*flags)
        return [*most, str(environment("jaxnew")), "-P", str(TRAINING), plan]

    def trained(self, *flags: str) -> Ended:
        """Every batch counts once, on every rank, whatever has failed in between."""
        ended = self.run(*flags, seconds=250, **quiet())
        assert ended.status == 0, ended.told
        done = [float(5 * (epoch + 1)) for epoch in range(3)]
        want = [{"w": [[each] * 2] * 2, "b": [[each]]} for each in done]
        assert ended.column("params") == want, ended.told
        assert ended.column("alike") == [True] * 3, ended.told
        return ended


def test_rank_is_killed_while_the_other_waits_in_a_program(tmp_path: Path) -> None:
    ended = JaxJob(tmp_path, batches=5, exits={"1,3": {0: "kill"}}).trained("-np", "2", "--min-np", "1")
    assert ended.column("workers") == [[0, 1], [1, 2], [1, 2]]


def test_rank_joins_and_programs_are_compiled_for_three(tmp_path: Path) -> None:
    schedule = {0: "localhost:2", 1: "localhost:3"}
    ended = JaxJob(tmp_path, batches=5, waits=[0], schedule=schedule).trained(
        "-np", "2", "--min-np", "2", "--max-np", "3"
    )
    assert ended.column("workers") == [[0, 1], [0, 1, 2], [0, 1, 2]]
