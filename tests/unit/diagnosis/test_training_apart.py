"""The guard against training apart: which reports of ranks call for a warning, and which never do."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from hvd_kernel.diagnosis.training_apart import TrainingApart, warning_of
from hvd_kernel.protocol.messages import MetricsSample, OptimizerSteps, ParameterDigest, from_content, to_content
from hvd_kernel.protocol.training_apart import (
    END_STEPS,
    LIVE_STEPS,
    SHARED_STEPS,
    nothing_exchanged,
    parameters_differ,
)

SGD = OptimizerSteps(0, "SGD 2 abc", LIVE_STEPS, False, False, False, False)
REDUCED = SGD._replace(reduced=True, exchanged=True)
ALL = frozenset({0, 1})
BOTH = "ranks 0-1"
NONE: frozenset[int] = frozenset()

Reports = Mapping[int, tuple[OptimizerSteps, ...]]


def digests(*values: float) -> tuple[ParameterDigest, ...]:
    """At steps 1, 2, 4, ..."""
    return tuple(ParameterDigest(1 << number, value, 10.0) for number, value in enumerate(values))


def both(**change: object) -> Reports:
    return dict.fromkeys(ALL, (SGD._replace(**change),))  # type: ignore[arg-type]


def reduced(*of_rank: tuple[float | None, ...]) -> Reports:
    return {rank: (REDUCED._replace(digests=digests(*values)),) for rank, values in enumerate(of_rank)}


NAN = None
TOO_FEW = LIVE_STEPS - 1
CASES: dict[str, tuple[Reports, frozenset[int], str]] = {
    "plain optimizers": (both(), NONE, nothing_exchanged(BOTH, LIVE_STEPS)),
    "plain optimizers at the end": (both(steps=END_STEPS), ALL, nothing_exchanged(BOTH, END_STEPS)),
    "the slower rank has taken fewer": (
        {0: (SGD,), 1: (SGD._replace(steps=LIVE_STEPS + 9),)},
        NONE,
        nothing_exchanged(BOTH, LIVE_STEPS),
    ),
    "broadcast and no DistributedOptimizer": (
        both(steps=END_STEPS, shared_ever=True, shared_in_run=True),
        ALL,
        nothing_exchanged(BOTH, END_STEPS),
    ),
    "parameters differ": (reduced((1.0, 2.0, 3.0), (1.0, 2.5, 3.5)), NONE, parameters_differ(BOTH, 2)),
    "parameters were never equal": (reduced((1.0, 2.0), (5.0, 6.0)), NONE, parameters_differ(BOTH, 1)),
    "NaN on one rank": (reduced((1.0, NAN, NAN), (1.0, 2.0, 3.0)), NONE, parameters_differ(BOTH, 2)),
    "one rank": ({0: (SGD,)}, frozenset({0}), ""),
    "one rank trains, the other one evaluates": ({0: (SGD,), 1: ()}, ALL, ""),
    "different models": ({0: (SGD,), 1: (SGD._replace(model="SGD 4 def"),)}, ALL, ""),
    "another library exchanges, or a loop by hand": (both(exchanged=True), ALL, ""),
    "one rank is known to exchange": ({0: (SGD,), 1: (SGD._replace(exchanged=True),)}, ALL, ""),
    "local steps before an exchange": (both(steps=TOO_FEW), NONE, ""),
    "local steps after a broadcast": (both(steps=SHARED_STEPS - 1, shared_ever=True), NONE, ""),
    "local steps in a cell of their own": (both(steps=TOO_FEW, shared_ever=True), ALL, ""),
    "a few steps": (both(steps=END_STEPS - 1), ALL, ""),
    "a plain optimizer whose parameters differ": (
        {
            0: (SGD._replace(exchanged=True, digests=digests(1, 2)),),
            1: (SGD._replace(exchanged=True, digests=digests(3, 4)),),
        },
        ALL,
        "",
    ),
    "parameters agree": (reduced((1.0, 2.0), (1.0, 2.0)), ALL, ""),
    "rounding on another processor": (reduced((1.0, 2.0), (1.0001, 2.0001)), ALL, ""),
    "NaN on both": (reduced((1.0, NAN, NAN), (1.0, NAN, NAN)), ALL, ""),
    "a rank that is read between two steps": (reduced((1.0, 2.0, 3.0), (1.0, 2.0, 9.0)), ALL, ""),
    "they agree again": (reduced((1.0, 5.0, 3.0), (1.0, 2.0, 3.0)), ALL, ""),
    "no step in common": (
        {
            0: (REDUCED._replace(digests=digests(1.0)),),
            1: (REDUCED._replace(digests=(ParameterDigest(64, 9.0, 10.0),)),),
        },
        ALL,
        "",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_which_reports_call_for_a_warning(case: str) -> None:
    reports, over, expected = CASES[case]
    assert warning_of(reports, over) == expected


def test_a_warning_names_ranks_step_and_switch() -> None:
    assert nothing_exchanged("ranks 0-1,3", 300).startswith(
        "hvd_kernel: ranks 0-1,3 train separate models: each has taken 300"
    )
    assert "differ since optimizer step 64" in parameters_differ(BOTH, 64)
    for text in (nothing_exchanged(BOTH, 300), parameters_differ(BOTH, 64)):
        assert 'os.environ["HVD_GUARD"] = "off"' in text


def sample(rank: int, *optimizers: OptimizerSteps, state: str = "compute") -> MetricsSample:
    return from_content(MetricsSample, to_content(MetricsSample(rank, 1.0, state, optimizers=optimizers)))


def test_a_run_is_warned_once() -> None:
    guard = TrainingApart([0, 1])
    few = SGD._replace(steps=END_STEPS)
    assert not guard.observe(sample(0, few))
    assert not guard.observe(sample(1, few))
    assert not guard.observe(sample(0, few, state="idle"))
    assert guard.observe(sample(1, few, state="idle")) == nothing_exchanged(BOTH, END_STEPS)
    assert not guard.observe(sample(1, SGD, state="idle"))
    assert guard.warning == nothing_exchanged(BOTH, END_STEPS)


def test_reports_survive_the_wire() -> None:
    sent = REDUCED._replace(digests=digests(1.0, 2.0))
    assert sample(0, sent, SGD).optimizers == (sent, SGD)
