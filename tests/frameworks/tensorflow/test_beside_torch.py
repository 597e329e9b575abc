"""Behaviour of TensorFlow's graphs that equals torch's: reduce during the backward pass, agree on small operations without a
message, and report a death as soon (F5).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hvdtest.environments import Ranks, environment
from hvdtest.launch import RankPool

pytestmark = [pytest.mark.nightly, pytest.mark.mp]
KILLS = 3
WORST_S = 0.25  # that a survivor may need, R1 of docs/reliability.md


def names_of_a_chain() -> list[Any]:
    """Each operation uses the previous result, so that its default name contains the previous one."""
    import tensorflow as tf

    import hvd_kernel.tensorflow as hvd

    hvd.init()

    @tf.function
    def chain(x: Any) -> Any:
        for _ in range(40):
            x = hvd.allreduce(x, op=hvd.Sum)
        return x

    names = [each.name for each in chain.get_concrete_function(tf.constant(1.0)).graph.get_operations()]
    ours = [name for name in names if name.startswith("HorovodAllreduce")]
    return [float(chain(tf.constant(1.0))) == 2.0**40, max(map(len, ours)), len(set(ours)), ours]


def test_names_are_short_enough_to_agree_without_a_message(tf_ranks: RankPool) -> None:
    """The 40th name had 700 bytes: each call needed two messages, and three times as long as others."""
    (right, longest, different, names), (_, _, _, of_the_other) = tf_ranks.run(names_of_a_chain)
    assert (right, longest, different) == (True, 120, 40)
    assert names == of_the_other


def first_reduced_before_last_is_ready() -> list[Any]:
    """The backward pass of the first layer waits until the second layer's gradient has been reduced."""
    import threading

    import tensorflow as tf

    import hvd_kernel.tensorflow as hvd

    hvd.init()
    reduced, seen = threading.Event(), []
    first, second = tf.Variable([2.0]), tf.Variable([3.0 + hvd.rank()])

    def wait(value: Any) -> Any:
        seen.append(reduced.wait(30))
        return value

    def run(function: Any, value: Any) -> Any:  # without a state: one such operation does not wait for another
        made = tf.numpy_function(function, [value], tf.float32, stateful=False)
        made.set_shape(value.shape)
        return made

    @tf.custom_gradient
    def late(x: Any) -> Any:
        return tf.identity(x), lambda dy: run(wait, dy)

    def tell(value: Any) -> Any:
        reduced.set()
        return value

    @tf.function
    def step() -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(late(first) * second)
        one, two = hvd.DistributedGradientTape(tape).gradient(loss, [first, second])
        return one, run(tell, two)

    return [*(each.numpy().tolist() for each in step()), seen]


def test_gradient_is_reduced_during_the_backward_pass() -> None:
    with Ranks(environment("tf221"), 2, interop=4) as ranks:
        assert ranks.run(first_reduced_before_last_is_ready) == [[[3.5], [2.0], [True]]] * 2


def in_a_function(file: str) -> float:
    import tensorflow as tf

    import hvd_kernel.tensorflow as hvd
    from hvd_kernel.tensorflow.library import translated

    hvd.init()
    step = tf.function(lambda x: hvd.allreduce(hvd.allreduce(x, name="first"), name="second"))
    step(tf.ones([4]))
    return _after(file, hvd.rank(), lambda: step(tf.ones([4])), (tf.errors.AbortedError,), translated)


def in_torch(file: str) -> float:
    import torch

    import hvd_kernel.torch as hvd
    from hvd_kernel.errors import HorovodInternalError

    hvd.init()
    hvd.allreduce(torch.ones(4), name="first")
    return _after(
        file,
        hvd.rank(),
        lambda: hvd.allreduce(torch.ones(4), name="first"),
        (HorovodInternalError,),
        lambda error: error,
    )


def _after(file: str, rank: int, act: Any, kinds: Any, meaning: Any) -> float:
    """Seconds from the death of rank 1 to the survivor's error."""
    import os
    import signal
    import time

    from hvd_kernel.errors import RankDied

    if rank == 1:
        Path(file).write_text(repr(time.monotonic()))
        os.kill(os.getpid(), signal.SIGKILL)
    with pytest.raises(kinds) as caught:
        act()
    heard = time.monotonic()
    meant = meaning(caught.value)
    assert isinstance(meant, RankDied)
    assert meant.rank == 1
    return heard - float(Path(file).read_text())


def test_a_death_reaches_survivors_as_fast_as_in_torch(tmp_path: Path) -> None:
    seconds: dict[str, list[float]] = {"torch": [], "TensorFlow": []}
    for turn in range(KILLS):
        with RankPool(2) as ranks:
            seconds["torch"].append(ranks.run(in_torch, str(tmp_path / f"torch{turn}"), gone={1: -9})[0])
        with Ranks(environment("tf221"), 2) as ranks:
            seconds["TensorFlow"].append(ranks.run(in_a_function, str(tmp_path / f"tf{turn}"), gone={1: -9})[0])
    assert min(seconds["TensorFlow"]) <= min(seconds["torch"]) + WORST_S, seconds
