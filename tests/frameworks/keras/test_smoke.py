"""TensorFlow with Keras, end to end: two ranks of hvdrun, an operation, a tape's step, and fit with callbacks.

The default tier's only test of TensorFlow: the first one to run makes the environment.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hvdtest.environments import environment, quiet
from hvdtest.hvdrun import HVDRUN, good, lines_of, ran

SCRIPT = """
import json
import numpy as np
import tensorflow as tf
import keras
import hvd_kernel.tensorflow as hvd
import hvd_kernel.tensorflow.keras as hvd_keras

hvd.init()
rank = hvd.rank()
total = tf.function(lambda x: hvd.allreduce(x, op=hvd.Sum))(tf.constant([rank + 1.0]))
weight = tf.Variable([1.0])
with tf.GradientTape() as tape:
    loss = weight * (rank + 1.0)
gradient = hvd.DistributedGradientTape(tape).gradient(loss, weight)

keras.utils.set_random_seed(rank)
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
model.compile(hvd_keras.DistributedOptimizer(keras.optimizers.SGD(0.1)), loss="mse", jit_compile=False)
x = np.full((8, 4), rank + 1.0, np.float32)


class Adds(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        logs["vector"], logs["note"] = np.array([rank, 2.0]), "text"


callbacks = [
    hvd_keras.callbacks.BroadcastGlobalVariablesCallback(0), Adds(), hvd_keras.callbacks.MetricAverageCallback()
]
history = model.fit(x, x[:, :1], batch_size=4, verbose=0, callbacks=callbacks).history
weights = [value.tolist() for value in model.get_weights()]
value = float(hvd_keras.allreduce(rank + 1.0, average=False).numpy())
refused = False
try:
    hvd.alltoall(tf.zeros([2]), splits=[1.5, 0.5])
except tf.errors.InvalidArgumentError as error:
    refused = isinstance(error, ValueError)
metrics = [history["vector"][0].tolist(), history["note"], history["loss"]]
print(json.dumps([float(total[0]), float(gradient[0]), value, refused, metrics, weights]))
"""


@pytest.mark.timeout(600)
def test_tensorflow_and_keras_train_on_two_ranks(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    command = [*HVDRUN, "-np", "2", str(environment("tf221")), str(script)]
    said = good(ran(command, seconds=300, **quiet()))
    first, second = (json.loads(lines_of(said, rank)[-1]) for rank in range(2))
    assert first == second
    assert first[:4] == [3.0, 1.5, 3.0, True]
    assert first[4][:2] == [[0.5, 2.0], ["text"]]
