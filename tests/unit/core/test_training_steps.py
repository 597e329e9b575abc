"""Optimizers that count their own steps, as the guard against training apart reads them: of Keras, of MXNet, unusual."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from hvd_kernel.core import session, step_counts, training_steps
from hvd_kernel.core.script_reporter import ScriptReporter
from hvd_kernel.protocol.messages import OptimizerSteps

NBYTES = 1000


class FakeSession:
    """A fake session of two ranks with counters of their exchanges."""

    def __init__(self) -> None:
        self.bytes, self.generation = 0, 1


@pytest.fixture
def ranks(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeSession]:
    fake = FakeSession()
    monkeypatch.setattr(session, "is_initialized", lambda: True)
    monkeypatch.setattr(session, "size", lambda: 2)
    monkeypatch.setattr(session, "generation", lambda: fake.generation)
    monkeypatch.setattr(session, "counters", lambda: {"bytes": fake.bytes})
    for name in ("_followed", "_tracked"):
        monkeypatch.setattr(training_steps, name, [])
    monkeypatch.setattr(training_steps, "_script", ScriptReporter(training_steps.reports))
    for name in ("_run", "_bytes_at_start", "_bytes_before_run", "_follows"):
        monkeypatch.setattr(training_steps, name, getattr(training_steps, name))
    training_steps.begin_cell()
    yield fake
    training_steps.begin_cell()


class Counter:
    """An optimizer of an unknown framework."""

    def __init__(self) -> None:
        self.steps = 0

    def follow(self) -> None:
        training_steps.follow(self, "any", NBYTES, count=lambda: self.steps, connected=lambda: False)


def report() -> OptimizerSteps:
    (steps,) = training_steps.reports()
    return steps


def test_steps_are_those_of_the_run_and_exchanges_those_since(ranks: FakeSession) -> None:
    counter = Counter()
    counter.steps, ranks.bytes = 100, NBYTES
    counter.follow()
    assert training_steps.reports() == ()
    counter.steps = 120
    assert (report().steps, report().exchanged, report().shared_in_run) == (20, False, True)
    ranks.bytes += NBYTES // 100
    assert report().exchanged
    training_steps.begin_cell()
    assert training_steps.reports() == ()
    counter.steps = 130
    assert (report().steps, report().exchanged, report().shared_in_run, report().shared_ever) == (
        10,
        False,
        False,
        True,
    )


def test_a_broadcast_after_the_first_step_is_no_exchange(ranks: FakeSession) -> None:
    counter = Counter()
    counter.follow()
    counter.steps, ranks.bytes = 1, NBYTES
    training_steps.begin_exchange()
    counter.steps = 9
    assert not report().exchanged
    ranks.bytes += NBYTES
    training_steps.begin_exchange()
    assert report().exchanged


def test_unreadable_count_is_kept(ranks: FakeSession) -> None:
    counts: list[Any] = [3]
    optimizer = Counter()
    training_steps.follow(optimizer, "any", NBYTES, count=lambda: int(counts[0]), connected=lambda: False)
    counts[0] = 8
    assert report().steps == 5
    counts[0] = None  # a program has taken the variable over
    assert report().steps == 5
    counts[0] = 9
    assert report().steps == 6


def test_steps_restart_after_a_recovery(ranks: FakeSession) -> None:
    counter = Counter()
    counter.follow()
    counter.steps = 5
    before = report()
    ranks.generation += 1
    assert training_steps.reports() == ()
    counter.steps = 7
    assert report().steps == 2
    assert report().model != before.model


def test_report_while_another_thread_begins_a_run_has_its_steps(ranks: FakeSession) -> None:
    steps, reports = [0], []
    is_read_meanwhile = False

    def count() -> int:
        nonlocal is_read_meanwhile
        if is_read_meanwhile:
            is_read_meanwhile = False
            reports.append(training_steps.reports())  # as telemetry does, in its thread
        return steps[0]

    optimizer = Counter()
    training_steps.follow(optimizer, "any", NBYTES, count=count, connected=lambda: False)
    steps[0] = 5
    assert report().steps == 5
    ranks.generation += 1
    is_read_meanwhile = True
    assert (training_steps.reports(), reports) == ((), [()])
    steps[0] = 7
    assert report().steps == 2


def test_few_optimizers_are_reported_and_none_switched_off(ranks: FakeSession, monkeypatch: pytest.MonkeyPatch) -> None:
    counters = [Counter() for _ in range(training_steps.MOST_OPTIMIZERS + 3)]
    for counter in counters:
        counter.follow()
    for counter in counters[1:]:
        counter.steps = 1
    numbers = [steps.number for steps in training_steps.reports()]
    assert len(numbers) == training_steps.MOST_OPTIMIZERS
    assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))
    monkeypatch.setenv("HVD_GUARD", "off")
    assert training_steps.reports() == ()


def test_a_search_over_parameters_keeps_few_optimizers(ranks: FakeSession) -> None:
    counters = [Counter() for _ in range(3 * training_steps.MOST_FOLLOWED)]
    for counter in counters:
        counter.follow()
    assert len(training_steps._followed) == training_steps.MOST_FOLLOWED
    counters[-1].steps = 5
    assert report().steps == 5


def keras_module(name: str) -> ModuleType:
    """Return a Keras whose optimizers are built as in Keras 3; each test has its own classes."""

    class BaseOptimizer:
        built = False

        def build(self, variables: list[Any]) -> None:
            self.variables, self.iterations = variables, np.array(0)

    class Optimizer(BaseOptimizer):
        pass

    class Sgd(Optimizer):
        def build(self, variables: list[Any]) -> None:
            super().build(variables)

    class LossScaleOptimizer(Optimizer):
        inner_optimizer = None

    module = ModuleType(name)
    kinds = {kind.__name__: kind for kind in (Optimizer, Sgd, LossScaleOptimizer)}
    module.optimizers = SimpleNamespace(**kinds)  # type: ignore[attr-defined]
    return module


def test_keras_optimizers_are_followed_from_their_build(ranks: FakeSession) -> None:
    keras = keras_module("keras")
    step_counts.attach(keras)
    variables = [SimpleNamespace(shape=(25, 10), dtype="float32")]
    kinds = keras.optimizers
    optimizers = [kinds.Sgd(), kinds.LossScaleOptimizer(), kinds.Sgd()]
    optimizers[2].wrapping = None  # a DistributedOptimizer
    for optimizer in optimizers:
        optimizer.build(variables)
        optimizer.iterations += 9
    assert report().steps == 9
    ranks.bytes += 25 * 10 * 4 // 100 - 1
    assert not report().exchanged
    ranks.bytes += 1
    assert report().exchanged
    optimizers.clear()
    del optimizer
    gc.collect()
    assert report().steps == 9, "of an optimizer that was deleted in this run"
    training_steps.begin_cell()
    assert training_steps._followed == []


def test_gluon_trainers_are_counted(ranks: FakeSession) -> None:
    class Trainer:
        def __init__(self) -> None:
            self._params = [
                SimpleNamespace(shape=(25, 10), dtype=np.float32, grad_req="write"),
                SimpleNamespace(shape=(1000, 1000), dtype=np.float32, grad_req="null"),
            ]

        def _update(self, ignore_stale_grad: bool = False) -> None:
            assert not ignore_stale_grad

        def step(self) -> None:
            self._update(False)

    class DistributedTrainer(Trainer):
        reduces_gradients = True

    module = ModuleType("mxnet.gluon.trainer")
    module.Trainer = Trainer  # type: ignore[attr-defined]
    step_counts.attach(module)
    trainers = Trainer(), DistributedTrainer()
    for trainer in trainers:
        for _ in range(3):
            trainer.step()
    assert report().steps == 3
    ranks.bytes += 10
    assert report().exchanged


def test_unknown_version_is_not_followed(ranks: FakeSession) -> None:
    step_counts.attach(ModuleType("keras"))
    keras = keras_module("tf_keras")
    step_counts.attach(keras)
    keras.optimizers.Sgd().build(None)
    assert training_steps.reports() == ()
