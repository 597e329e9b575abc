"""The cost of a failure, by a real hvdrun: one step with a StepGuard, all steps since the last commit without one, and no bit."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from hvdtest.hvdrun import HVDRUN
from hvdtest.launch import clean_environment

pytestmark = [pytest.mark.mp, pytest.mark.nightly, pytest.mark.usefixtures("mark")]

KEEPING = Path(__file__).with_name("keeping.py")
STEPS = 8

Kills = Mapping[int, Mapping[str, Sequence[int]]]


class Job:
    """One job, and its files."""

    def __init__(
        self,
        folder: Path,
        how: str,
        kills: Kills | None = None,
        checkpoint: Path | None = None,
        flags: Sequence[str] = (),
    ) -> None:
        folder.mkdir()
        (folder / "calls").mkdir()
        self.end = folder / "end"
        plan = {"how": how, "kills": kills or {}, "checkpoint": checkpoint and str(checkpoint)}
        plan |= {"end": str(self.end), "calls": str(folder / "calls")}
        (folder / "plan").write_text(json.dumps(plan))
        training = [sys.executable, "-P", str(KEEPING), str(folder / "plan")]
        command = [*HVDRUN, "-np", "2", "--min-np", "1", *flags, *training]
        ran = subprocess.run(command, env=clean_environment(), capture_output=True, text=True, timeout=200, check=False)
        self.status, self.told = ran.returncode, ran.stdout + ran.stderr
        self.bits = self.end.read_text() if self.end.exists() else ""
        self.begun = {int(path.name): int(path.read_text()) for path in (folder / "calls").iterdir()}


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Return the result of training without faults, guarded and committed."""
    folder = tmp_path_factory.mktemp("undisturbed")
    jobs = {how: Job(folder / how, how) for how in ("guard", "commit")}
    assert [job.status for job in jobs.values()] == [0, 0], [job.told for job in jobs.values()]
    return {how: job.bits for how, job in jobs.items()}


@pytest.mark.parametrize("failing", [0, 1])
@pytest.mark.parametrize("place", ["backward", "voted", "stepped"])
def test_killed_rank_costs_one_step(place: str, failing: int, undisturbed: dict[str, str], tmp_path: Path) -> None:
    killed = Job(tmp_path / "killed", "guard", {3: {place: [failing]}})
    assert killed.status == 0, killed.told
    assert killed.bits == undisturbed["guard"]
    assert killed.begun[1 - failing] <= STEPS + 1, "of the one that was there all the time"
    assert killed.begun[2] >= STEPS - 4, "the new one went on where the other was"


@pytest.mark.parametrize("failing", [0, 1])
def test_21_all_state_is_restored_to_the_commit_bit_for_bit(
    failing: int, undisturbed: dict[str, str], tmp_path: Path
) -> None:
    killed = Job(tmp_path / "killed", "commit", {3: {"backward": [failing]}})
    assert killed.status == 0, killed.told
    assert killed.bits == undisturbed["commit"]
    assert killed.begun[1 - failing] == STEPS + 2, "step 2 was done, and step 3 begun, since the commit"


def test_job_resumes_from_its_checkpoint_after_losing_all_ranks(undisturbed: dict[str, str], tmp_path: Path) -> None:
    lost = Job(tmp_path / "lost", "commit", {5: {"backward": [0, 1]}}, tmp_path / "checkpoints")
    assert lost.status == 0, lost.told
    assert f"checkpoint: resumed from {tmp_path}/checkpoints/commit-0000000002-" in lost.told
    assert lost.bits == undisturbed["commit"]
    assert lost.begun == {2: STEPS - 4, 3: STEPS - 4}


def test_new_job_resumes_from_the_checkpoint_of_another(undisturbed: dict[str, str], tmp_path: Path) -> None:
    kills = {5: {"backward": [0, 1]}}
    lost = Job(tmp_path / "lost", "commit", kills, tmp_path / "checkpoints", flags=("--max-restarts", "0"))
    assert lost.status != 0, lost.told
    resumed = Job(tmp_path / "resumed", "commit", None, tmp_path / "checkpoints")
    assert resumed.status == 0, resumed.told
    assert f"checkpoint: resumed from {tmp_path}/checkpoints/commit-0000000002-" in resumed.told
    assert resumed.bits == undisturbed["commit"]
    assert resumed.begun == {0: STEPS - 4, 1: STEPS - 4}
