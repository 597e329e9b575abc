"""Keras in cells, in an environment with TensorFlow and without torch: figures of the panel, a new rank's model."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hvdtest.environments import environment, quiet
from hvdtest.kernel import Kernel
from hvdtest.notebooks import kernels_of

from hvd_kernel.protocol.training_apart import nothing_exchanged

pytestmark = [pytest.mark.nightly, pytest.mark.mp, pytest.mark.jupyter, pytest.mark.timeout(900)]
LONG_S = 250.0  # for an import of TensorFlow on each rank, on cores that others use too

BEGIN = """%%hvdrun -np 2 -o counted
import keras, numpy as np, os, signal
import hvd_kernel.keras as hvd
from hvd_kernel import keep
x = np.random.default_rng(rank).random((32, 4), np.float32)
y = x.sum(1, keepdims=True)
keras.utils.set_random_seed(1)
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3), keras.layers.Dense(1)])
model.compile(hvd.DistributedOptimizer(keras.optimizers.Adam(0.01)), loss="mse", jit_compile=False)
model.fit(x, y, batch_size=4, epochs=3, verbose=0)
keep("model")
from hvd_kernel.core import metrics
(metrics.snapshot().step, metrics.snapshot().samples)
"""
DIES = """%%hvdrun
class Dies(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        if batch == 2:
            os.kill(os.getpid(), signal.SIGKILL)
model.fit(x, y, batch_size=4, verbose=0, callbacks=[Dies()] if rank else [])
"""
GOES_ON = """%%hvdrun -o found
import numpy as np, sys
import hvd_kernel.keras as hvd
x = np.random.default_rng(rank).random((32, 4), np.float32)
y = x.sum(1, keepdims=True)
before = hvd.allgather_object([each.tolist() for each in model.get_weights()])
steps = int(model.optimizer.iterations)
model.fit(x, y, batch_size=4, epochs=2, verbose=0)
after = [each.tolist() for each in model.get_weights()]
before[0] == before[1], before[0] != after, steps, int(model.optimizer.iterations), after, "torch" in sys.modules
"""


def test_new_rank_gets_the_model_and_the_panel_shows_samples(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JUPYTER_PATH", str(kernels_of(environment("tf221"), tmp_path)))
    with Kernel(tmp_path, env=quiet() | {"TF_ENABLE_ONEDNN_OPTS": "0"}) as kernel:
        begun = kernel.run(BEGIN, timeout=LONG_S)
        assert begun.error == ""
        (figures,) = (each["metadata"]["hvd"] for each in begun.contents("display_data") if each["metadata"])
        assert figures["steps"] == 3 * 8
        assert all(figures["samples_per_s"]["per_rank"][rank] > 0 for rank in ("0", "1"))
        assert kernel.run("print(counted[0], counted[1])").text() == "(24, 96) (24, 96)\n"
        assert kernel.run("%hvd check model").text().startswith("model is the same on 2 ranks")
        kernel.run("%%hvdrun\nbias = model.layers[1].bias\nold = bias.numpy()\nbias.assign(old + rank)")
        assert kernel.run("%hvd check model").text().startswith("model differs: first at ")
        kernel.run("%%hvdrun\nbias.assign(old)")
        assert "rank 1 (process" in (died := kernel.run(DIES, timeout=LONG_S, allow_error=True).error)
        assert "has died" in died
        assert kernel.run("%hvd respawn", timeout=LONG_S).error == ""
        assert kernel.run(GOES_ON, timeout=LONG_S).error == ""
        first, second = json.loads(kernel.run("import json; print(json.dumps([found[0], found[1]]))").text())
        assert first == second
        same, moved, before, after, _, torch = first
        assert (same, moved, torch) == (True, True, False)
        assert before in {3 * 8 + 3, 3 * 8 + 4}, "the step that failed may have been counted before it did"
        assert after == before + 2 * 8


PLAIN = """%%hvdrun -np 2
import keras, numpy as np
x = np.random.default_rng(rank).random((80, 4), np.float32)
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3)])
model.compile(keras.optimizers.SGD(0.01), loss="mse", jit_compile=False)
model.fit(x, x[:, :3], batch_size=4, epochs=1, verbose=0);"""


@pytest.mark.parametrize("backend", ["torch", "jax"])
def test_cell_without_hvd_is_warned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, backend: str) -> None:
    monkeypatch.setenv("JUPYTER_PATH", str(kernels_of(environment("keras_torch_jax"), tmp_path)))
    env = quiet() | {"KERAS_BACKEND": backend, "HVD_GUARD": "on"}
    with Kernel(tmp_path, env=env) as kernel:
        outcome = kernel.run(PLAIN, timeout=LONG_S)
        assert outcome.text("stderr").count(nothing_exchanged("ranks 0-1", 20)) == 1
