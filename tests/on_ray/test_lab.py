"""``%%hvdrun --on ray`` in JupyterLab: the panel of ranks in actors, and the interrupt button."""

from __future__ import annotations

from pathlib import Path

import pytest
from hvdtest import engine_lab, ray_driver

pytestmark = [pytest.mark.browser, pytest.mark.jupyter, pytest.mark.nightly, pytest.mark.timeout(600)]

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
