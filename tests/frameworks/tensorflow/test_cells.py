"""TensorFlow in a notebook's cells, in an environment without torch: hvd, the panel, check, doctor, a death, detached ranks."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from hvdtest.environments import environment, quiet
from hvdtest.kernel import Kernel

from hvd_kernel.frameworks.installed import FRAMEWORKS

pytestmark = [pytest.mark.nightly, pytest.mark.mp, pytest.mark.jupyter, pytest.mark.timeout(900)]
LONG_S = 250.0  # for an import of TensorFlow on each rank, on cores that others use too

TRAINS = """%%hvdrun
import os, signal, sys
import tensorflow as tf
w = tf.Variable([1.0, 2.0])
adam = tf.compat.v1.train.AdamOptimizer(0.1)
@tf.function
def step(rows):
    hvd.count_samples(tf.shape(rows)[0])
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(rows * w * w)
    adam.apply_gradients(zip(hvd.DistributedGradientTape(tape).gradient(loss, [w]), [w]))
for _ in range(20):
    step(tf.ones([8, 2]) * (rank + 1.0))
hvd.__name__, str(device), "torch" in sys.modules
"""
DIES = """%%hvdrun
if rank:
    os.kill(os.getpid(), signal.SIGKILL)
step(tf.ones([8, 2]))
"""


@pytest.fixture
def cells(tmp_path: Path) -> Iterator[Kernel]:
    with Kernel(tmp_path, "tf", quiet(), environment("tf221")) as kernel:
        kernel.run("%hvd start -np 2 --keep tf")
        yield kernel
        if not kernel.ended:
            kernel.run("%hvd stop")


def test_a_notebook_with_tensorflow_alone(cells: Kernel) -> None:
    trained = cells.run(TRAINS, timeout=LONG_S)
    assert trained.shown[-1:] == ["[0-1] ('hvd_kernel.tensorflow', '/CPU:0', False)"]
    (panel,) = (each for each in trained.contents("display_data") if each["metadata"])
    figures, picture = panel["metadata"]["hvd"], panel["data"]["image/svg+xml"]
    assert figures["steps"] == 20
    assert all(figures["samples_per_s"]["per_rank"][rank] > 0 for rank in ("0", "1"))
    assert len(re.findall(r">\d[\d.]* [MG]B<", picture)) == 2, "each rank's memory"

    assert cells.run("%hvd check w").text().startswith("w is the same on 2 ranks")
    cells.run("%%hvdrun\nkept = w.value()\nw.assign_add([0.0, 1.0 * rank])")
    told = cells.run("%hvd check w").text()
    assert told == "w differs: different on every rank (max |difference| 1)\n"
    cells.run("%%hvdrun\nw.assign(kept)")
    told = cells.run("%hvd doctor").text()
    working, lacking = (feature.title for feature in FRAMEWORKS[0].features)
    assert f"TensorFlow 2.21.0 ({working}; not {lacking} (" in told

    assert cells.run(DIES, timeout=LONG_S, allow_error=True).reply["ename"] == "RankDied"
    fresh = cells.run("%hvd respawn --restore tf,w", timeout=LONG_S).text()
    assert fresh.startswith("rank 1 is fresh: it has tf, w from rank 0")
    assert cells.run("%hvd check w").text().startswith("w is the same on 2 ranks")

    cells.restart()
    assert cells.run("%hvd attach tf").text() == "tf: ranks 0-1 ready, with all variables\n"
    summed = "%%hvdrun\nimport sys\nhvd.allreduce(w * 0 + 1, op=hvd.Sum).numpy().tolist(), 'torch' in sys.modules"
    assert cells.run(summed).shown[-1:] == ["[0-1] ([2.0, 2.0], False)"]
