"""Elastic state of Keras: commit, restore and sync of all variables, and callbacks that count, on two ranks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hvdtest.launch import RankPool

pytestmark = pytest.mark.nightly


def _small() -> Any:
    from frameworks.keras import small

    return small


def check_state() -> list[Any]:
    s = _small()
    hvd, k = s.hvd(), s.keras()
    mine = s.model(hvd.rank())
    mine.compile(hvd.DistributedOptimizer(k.optimizers.SGD(0.1, momentum=0.5)), loss="mse", **s.how())
    state = hvd.elastic.KerasState(mine, epoch=hvd.rank() + 3)
    own = s.weights(mine)
    state.sync()
    synced, epoch = s.weights(mine), state.epoch
    x, y = s.data(batches=1)
    mine.fit(x, y, batch_size=8, shuffle=False, verbose=0)
    state.epoch = 9
    trained = s.weights(mine)
    state.restore()
    restored = [s.weights(mine) == synced, state.epoch]
    mine.fit(x, y, batch_size=8, shuffle=False, verbose=0)
    again = s.weights(mine)
    state.save()
    mine.set_weights([0 * each for each in mine.get_weights()])
    state.restore()
    return [
        own == synced,
        epoch,
        synced == s.weights(s.model(0)),
        trained != synced,
        restored,
        again == trained,
        s.weights(mine) == again,
    ]


def test_state_syncs_from_rank_0_and_restores_the_last_commit(keras_ranks: RankPool) -> None:
    first, second = keras_ranks.run(check_state)
    assert first == [True, 3, True, True, [True, 3], True, True]
    assert second == [False, *first[1:]]


def check_checkpoint(folder: str) -> list[Any]:
    s = _small()
    hvd, k = s.hvd(), s.keras()

    def made(seed: int) -> tuple[Any, Any]:
        mine = s.model(seed)
        mine.compile(hvd.DistributedOptimizer(k.optimizers.Adam(0.1)), loss="mse", **s.how())
        return mine, hvd.elastic.KerasState(mine, epoch=0)

    mine, state = made(0)
    stored = hvd.elastic.Checkpoint(folder)
    stored.attach(state)
    x, y = s.data(batches=1)
    mine.fit(x, y, batch_size=8, shuffle=False, verbose=0)
    state.epoch = 5
    state.commit()
    stored.wait()
    hvd.allgather_object(None)  # rank 0 has written
    other, again = made(hvd.rank() + 1)
    taken = hvd.elastic.Checkpoint(folder)
    taken.attach(again)
    again.sync_from()
    return [
        s.weights(other) == s.weights(mine),
        again.epoch,
        again.commit_number,
        len(again.snapshot().of_rank_0["variables"]),
    ]


def test_checkpoint_holds_model_and_optimizer(keras_ranks: RankPool, tmp_path: Path) -> None:
    first, second = keras_ranks.run(check_checkpoint, str(tmp_path))
    assert first == second
    assert first[:3] == [True, 5, 1]
    assert first[3] > 4, "also the optimizer's"


def check_counters() -> list[Any]:
    s = _small()
    hvd, k = s.hvd(), s.keras()
    mine, commits, counts = s.model(0), [], []
    mine.compile(hvd.DistributedOptimizer(k.optimizers.SGD(0.1)), loss="mse", **s.how())

    class State:
        epoch, batch = 2, 0

        def commit(self) -> None:
            commits.append([self.epoch, self.batch])

    class Seen(k.callbacks.Callback):  # type: ignore[misc,name-defined]
        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            counts.append([state.epoch, state.batch])

    state, e = State(), hvd.elastic
    callbacks = [e.UpdateBatchStateCallback(state), e.UpdateEpochStateCallback(state), e.CommitStateCallback(state, 3)]
    x, y = s.data(batches=4)
    mine.fit(x, y, batch_size=8, epochs=2, verbose=0, callbacks=[*callbacks, Seen()])
    return [commits, counts]


def test_callbacks_count_batches_and_commit_every_third(keras_ranks: RankPool) -> None:
    # A third batch, the end of an epoch, the third batch after the last one's (the second of this epoch), the end.
    commits = [[2, 3], [3, 0], [3, 2], [4, 0]]
    assert keras_ranks.run(check_counters) == [[commits, [[3, 0], [4, 0]]]] * 2
