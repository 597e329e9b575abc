"""``%%hvdrun --on ray`` on a real Ray of two nodes: ranks in actors persist between cells, also in JupyterLab."""

from __future__ import annotations

import platform
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hvdtest import engine_lab, ray_driver
from hvdtest.programs import assert_interrupted, assert_respawned, text_of

pytestmark = [pytest.mark.mp, pytest.mark.nightly, pytest.mark.timeout(600)]

PROGRAMS = Path(__file__).parent / "programs"
SCRIPT = text_of("notebook_cells", PROGRAMS / "notebook.py")


def test_missing_requirements_are_reported_before_the_start(results: Mapping[str, Any]) -> None:
    assert results["unconnected"][1] == (
        "UsageError: this notebook is not connected to a Ray cluster: `import ray; ray.init(address='auto')` in a cell "
        "first"
    )
    assert results["how_many"][1] == ("UsageError: --on ray: the number of ranks is missing: write --on ray -np 8")
    assert results["doubled"][1].startswith("UsageError: -H is for ranks that mpiexec starts, and Ray places its own")


def test_doctor_checks_each_node(results: Mapping[str, Any]) -> None:
    said, error = results["doctor"]
    assert error == ""
    lines = said.splitlines()
    nodes = [re.sub(r"\s+", " ", line).split(", hvd_kernel")[0] for line in lines[1:3]]
    assert [re.sub(r"127\.\d+\.\d+\.", "", node) for node in nodes] == [
        f"ok node {number} Python {platform.python_version()}" for number in (2, 3)
    ]
    assert all(line.endswith("it reaches this notebook") for line in lines[1:3])
    assert re.search(r"2 nodes, 2 CPUs free$", lines[0])


def test_timeout_reports_the_resources_that_ray_has(results: Mapping[str, Any]) -> None:
    said, error = results["too_many"]
    assert said.startswith("starting 9 ranks\n")
    assert error.endswith("Ray has {'CPU': 2.0} free, and each of 9 ranks asks for {'CPU': 1.0}.")


def test_variables_persist_between_cells(results: Mapping[str, Any]) -> None:
    assert results["first"][1] == ""
    assert results["places"] == [[0, 2, 0, True], [1, 2, 0, True], 2], "a rank on each node"
    assert results["second"][0].endswith("[0-1] [0, 10]\n")
    assert results["second"][1] == ""


def test_options_for_local_ranks_are_refused(results: Mapping[str, Any]) -> None:
    here, resized, kept = (error for _, error in results["elsewhere"])
    assert here.startswith("UsageError: the ranks run on Ray: `%hvd stop` ends them, with their variables, and then")
    assert resized.startswith("ClusterError: Ray was asked for all ranks at once, and none can be added or taken away")
    assert kept.startswith("UsageError: --keep: ranks of Ray end with this kernel and cannot be kept")


def test_the_interrupt_key_ends_the_cell_and_variables_are_kept(results: Mapping[str, Any]) -> None:
    assert_interrupted(results)


def test_respawn_replaces_a_dead_rank_in_its_actor(results: Mapping[str, Any]) -> None:
    assert_respawned(results)


def test_killed_actor_is_replaced_with_its_rank(results: Mapping[str, Any]) -> None:
    (_, error), (said, _), after = results["actor_died"]
    assert "died: it was lost with the process of Ray that held it; the variables of the other" in error
    assert "rank 0 is fresh" in said
    assert after[0].endswith("[0-1] [0, 1]\n"), "a slow machine may have said who waits for whom"
    assert after[1] == ""


def test_stop_leaves_no_process(results: Mapping[str, Any]) -> None:
    assert results["stopped"] == [["the ranks are stopped\n", ""], ["REMOVED"]]


CLUSTER = ray_driver.HEAD + "\nmade, others = connected(node(1), node(1))"
START = "%%hvdrun --on ray -np 2\nimport os\nimport numpy as np\nkept = rank * 10"
TRAIN = """%%hvdrun
from hvd_kernel.core import metrics
weights = np.zeros(4)
chance = np.random.default_rng(rank)
while hvd.allreduce(np.array([float(os.path.exists("SEEN"))]), name="seen", op=hvd.Sum)[0] == 0:
    rows = chance.normal(size=(32, 4))
    errors = rows @ weights - rows.sum(axis=1)
    weights -= 0.1 * hvd.allreduce(rows.T @ errors / 32, name="gradient")
    metrics.step(samples=32)
    hvd.log(loss=float((errors ** 2).mean()))
print("trained", np.allclose(weights, 1.0, atol=0.1))"""


@pytest.mark.browser
@pytest.mark.jupyter
def test_the_panel_shows_ranks_in_actors_while_they_train(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cells = [CLUSTER, START, TRAIN.replace("SEEN", str(tmp_path / "seen")), engine_lab.HANG, engine_lab.STILL]
    cells += ["%hvd stop", "ray.shutdown()\nmade.shutdown()"]
    with (
        ray_driver.variables() as env,
        engine_lab.notebook_of("ray", cells, tmp_path, monkeypatch, **env) as (_, page, notebook),
    ):
        engine_lab.train_and_interrupt(notebook, "ray", tmp_path / "seen", "[0-1] trained True")
        notebook.shoot(engine_lab.SHOTS / "ray-after.png")
        engine_lab.run(notebook, 5)
        engine_lab.run(notebook, 6)
        assert page.errors == []
        assert page.strangers == []
