"""Elastic states of TensorFlow: commit, restore, sync; and elastic.run, to which TensorFlow's errors are Horovod's."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from hvdtest.launch import RankPool

pytestmark = [pytest.mark.nightly, pytest.mark.mp]


def variables() -> dict[str, Any]:
    import tensorflow as tf

    import hvd_kernel.tensorflow as hvd

    hvd.init()
    n = tf.Variable(hvd.rank(), dtype=tf.uint32)
    w = tf.Variable([1.0, 2.0 + hvd.rank()])
    state = hvd.elastic.TensorFlowState([w, n], epoch=hvd.rank(), seen=[])

    def now() -> list[Any]:
        return [w.numpy().tolist(), int(n.numpy()), state.epoch, state.seen]

    found = {}
    w.assign([5.0, 5.0])
    state.seen.append(1)
    state.restore()
    found["restored"] = now()
    state.sync()
    found["synced"] = now()
    w.assign([7.0, 7.0])
    state.epoch = 3
    state.commit()
    w.assign([8.0, 8.0])
    state.epoch = 4
    state.restore()
    found["committed"] = now()
    return found


def test_variables_are_restored_and_synced(tf_ranks: RankPool) -> None:
    for rank, found in enumerate(tf_ranks.run(variables)):
        assert found == {
            "restored": [[1.0, 2.0 + rank], rank, rank, []],
            "synced": [[1.0, 2.0], 0, 0, []],
            "committed": [[7.0, 7.0], 0, 3, []],
        }


def stored(folder: str) -> list[Any]:
    import tensorflow as tf

    import hvd_kernel.tensorflow as hvd

    hvd.init()
    w, b = tf.Variable([1.0, 2.0 + hvd.rank()]), tf.Variable([0.5], dtype=tf.bfloat16)
    state = hvd.elastic.TensorFlowState([w, b], epoch=3)
    checkpoint = hvd.elastic.Checkpoint(folder)
    checkpoint.attach(state)
    state.sync_from()
    state.commit()
    checkpoint.wait()
    hvd.allgather_object(None)  # rank 0 has written
    v, c = tf.Variable([0.0, 0.0]), tf.Variable([0.0], dtype=tf.bfloat16)
    again = hvd.elastic.TensorFlowState([v, c], epoch=0)
    hvd.elastic.Checkpoint(folder).attach(again)
    again.sync_from()
    return [v.numpy().tolist(), float(c.numpy()[0]), again.epoch, again.commit_number]


def test_a_checkpoint_has_the_variables(tf_ranks: RankPool, tmp_path: Path) -> None:
    assert tf_ranks.run(stored, str(tmp_path)) == [[[1.0, 2.0], 0.5, 3, 1]] * 2


def in_a_session() -> dict[str, Any]:
    import tensorflow.compat.v1 as tf1

    import hvd_kernel.tensorflow as hvd

    hvd.init()
    with tf1.Graph().as_default(), tf1.Session() as session:
        w = tf1.get_variable("w", initializer=tf1.constant([1.0 + hvd.rank()]))
        session.run(tf1.global_variables_initializer())
        state = hvd.elastic.TensorFlowState(session=session, batch=hvd.rank())
        session.run(w.assign([9.0]))
        state.restore()
        restored = session.run(w).tolist()
        state.sync()
        return {"restored": restored, "synced": session.run(w).tolist(), "batch": state.batch}


def test_variables_of_a_session(tf_ranks: RankPool) -> None:
    for rank, found in enumerate(tf_ranks.run(in_a_session)):
        assert found == {"restored": [1.0 + rank], "synced": [1.0], "batch": 0}


def without_a_session() -> None:
    import tensorflow.compat.v1 as tf1

    import hvd_kernel.tensorflow as hvd

    hvd.init()
    with tf1.Graph().as_default(), pytest.raises(ValueError, match=re.escape(hvd.elastic.NO_SESSION)):
        hvd.elastic.TensorFlowState()


def test_a_graph_without_a_session_is_refused(tf_ranks: RankPool) -> None:
    tf_ranks.run(without_a_session)


def keras() -> dict[str, Any]:
    import numpy as np
    import tensorflow as tf

    import hvd_kernel.tensorflow as hvd

    hvd.init()
    with pytest.raises(ValueError, match="Model must be built first"):
        hvd.elastic.TensorFlowKerasState(tf.keras.Sequential([tf.keras.layers.Dense(1)]))
    tf.keras.utils.set_random_seed(hvd.rank())
    model = tf.keras.Sequential([tf.keras.Input((2,)), tf.keras.layers.Dense(1)])
    model.compile(tf.keras.optimizers.Adam(0.1), "mse")
    state = hvd.elastic.TensorFlowKerasState(model, epoch=0)

    def everything() -> list[Any]:
        variables = model.optimizer.variables
        return [np.array(each) for each in [*model.variables, *(variables() if callable(variables) else variables)]]

    def same(a: list[Any], b: list[Any]) -> bool:
        return len(a) == len(b) and all((x == y).all() for x, y in zip(a, b, strict=True))

    def step() -> None:
        model.optimizer.apply_gradients([(tf.ones_like(each), each) for each in model.trainable_variables])

    begin = everything()
    step()
    moved = not same(begin, everything())
    state.restore()
    restored = same(begin, everything())
    step()
    state.sync()
    roots = hvd.broadcast_object(everything())
    synced = same(roots, everything())
    step()
    state.restore()
    return {"moved": moved, "restored": restored, "synced": synced, "kept": same(roots, everything()), "n": len(begin)}


def test_a_model_and_its_optimizer(tf_ranks: RankPool) -> None:
    for found in tf_ranks.run(keras):
        assert found.pop("n") >= 7  # two weights, two slots for each, steps
        assert found == {"moved": True, "restored": True, "synced": True, "kept": True}


def other_models() -> str:
    import tensorflow as tf

    import hvd_kernel.tensorflow as hvd

    hvd.init()
    state = hvd.elastic.TensorFlowState([tf.Variable(tf.zeros([2 + hvd.rank()]))])
    with pytest.raises(ValueError, match="build the same model") as caught:
        state.sync()
    return str(caught.value)


def test_ranks_with_different_models_are_reported(tf_ranks: RankPool) -> None:
    for told in tf_ranks.run(other_models):
        assert "number 0 is ((2,), 'float32') and ((3,), 'float32')" in told


def failing() -> dict[str, Any]:
    """Rank 1 fails once, while rank 0 waits inside a function: both go back to the last commit."""
    import tensorflow as tf

    import hvd_kernel.tensorflow as hvd

    hvd.init()
    w = tf.Variable([0.0])
    state = hvd.elastic.TensorFlowState([w], step=0)
    failures, causes, resets = [1], [], []
    state.register_reset_callbacks([lambda: resets.append(hvd.size())])

    @tf.function
    def update() -> None:
        with tf.GradientTape() as tape:
            loss = (hvd.rank() + 1.0) * tf.reduce_sum(w)
        w.assign_add(hvd.DistributedGradientTape(tape).gradient(loss, [w])[0])

    @hvd.elastic.run
    def train(state: Any) -> str:
        while state.step < 4:
            if hvd.rank() == 1 and state.step == 3 and failures:
                failures.pop()
                raise hvd.HorovodInternalError("a fault")
            try:
                update()
            except tf.errors.OpError as error:
                causes.append(type(error).__name__)
                raise
            state.step += 1
            if state.step % 2 == 0:
                state.commit()
        return "done"

    return {"result": train(state), "w": w.numpy().tolist(), "resets": resets, "causes": causes, "name": train.__name__}


def test_failure_restores_the_last_commit(tf_ranks: RankPool) -> None:
    for rank, found in enumerate(tf_ranks.run(failing)):
        causes = found.pop("causes")
        assert found == {"result": "done", "w": [6.0], "resets": [2], "name": "train"}
        assert causes == ([] if rank else ["AbortedError"])


def another_error() -> None:
    import tensorflow as tf

    import hvd_kernel.tensorflow as hvd

    hvd.init()

    @hvd.elastic.run
    def train(state: Any) -> None:
        tf.debugging.assert_equal(state.epoch, 1)

    with pytest.raises(tf.errors.InvalidArgumentError):
        train(hvd.elastic.ObjectState(epoch=0))


def test_unrelated_tensorflow_error_is_unchanged(tf_ranks: RankPool) -> None:
    tf_ranks.run(another_error)
