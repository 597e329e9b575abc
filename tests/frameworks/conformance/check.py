"""Check of a framework's ranks against the table: a rank runs the rows of a subject, and reports each that differs, by name."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import numpy as np
from frameworks.conformance.adapters import ADAPTERS, Adapter
from frameworks.conformance.gradients import differentiated, gradients, weights
from frameworks.conformance.table import SUBJECTS, Refusal, Row, Value, in_a_set
from frameworks.conformance.trainers import TRAINERS, Trainer
from frameworks.conformance.training import LAST, REFUSED, Training, trainings
from hvdtest.cases import numbers
from hvdtest.exact import raises
from hvdtest.launch import RankPool

from hvd_kernel.core import metrics
from hvd_kernel.errors import NotInitialized


def conforms(ranks: RankPool, framework: str, subject: str) -> None:
    """Check that the ranks ran every check of the subject, with the results and errors of the table, and equal errors on all ranks."""
    reports = ranks.run(run, framework, subject, timeout=240)
    wrong = [f"rank {rank}: {text}" for rank, report in enumerate(reports) for text in report["wrong"]]
    assert not wrong, f"{len(wrong)} of {framework}:\n" + "\n".join(wrong[:40])
    assert [report["ran"] for report in reports] == [names_of(framework, subject, ranks.np)] * ranks.np
    told = reports[0]["told"]
    assert [report["told"] for report in reports] == [told] * ranks.np, "every rank has the same message"
    unnamed = [name for name, text in told.items() if not all(re.search(rf"ranks? {n}\b", text) for n in (0, 1))]
    assert not unnamed, "the message has every rank's value"


def names_of(framework: str, subject: str, size: int) -> list[str]:
    """Return the checks of a framework: its rows of a subject, or a scene."""
    return [subject] if subject in {*SCENES, TRAININGS} else [row.name for row in _rows_for(framework, subject, size)]


def _rows_for(framework: str, subject: str, size: int) -> Iterator[Row]:
    return (row for row in SUBJECTS[subject]() if ADAPTERS[framework].supports(row, size))


def run(framework: str, subject: str) -> dict[str, Any]:
    """Return the names of the checks that ran, the wrong results, and the errors that all ranks must raise alike."""
    adapter = ADAPTERS[framework]()
    adapter.hvd.init()
    report: dict[str, Any] = {"ran": [], "wrong": [], "told": {}}
    with warnings.catch_warnings(), adapter.scope():
        warnings.simplefilter("ignore", DeprecationWarning)  # Horovod's older words
        if subject in SCENES:
            SCENES[subject](adapter)
            report["ran"].append(subject)
            return report
        if subject == TRAININGS:
            report["wrong"] = _wrong_trainings(adapter, TRAINERS.get(framework, {}))
            report["ran"].append(subject)
            return report
        for row in _rows_for(framework, subject, adapter.hvd.size()):
            try:
                told = _run(adapter, row)
                if told:
                    report["told"][row.name] = told
            except Exception as error:
                report["wrong"].append(f"{row.name}: {type(error).__name__}: {error}")
            report["ran"].append(row.name)
    return report


def _run(adapter: Adapter, row: Row, team: list[int] | None = None, process_set: Any = None) -> str:
    """Make the call of a row; return the message of the error if all ranks must raise it."""
    hvd = adapter.hvd
    team = team or list(range(hvd.size()))
    place, size = team.index(hvd.rank()), len(team)
    values, options = row.operands(place, size), dict(row.options(place, size))
    make = adapter.target if row.operation.endswith("_") else adapter.strided if row.strided else adapter.array
    operands = [make(value) for value in values]
    options["name"] = _name(row)
    if "root_rank" in options and row.refusal is None:
        options["root_rank"] = team[options["root_rank"]]
    if process_set is not None or options.get("process_set") == "unknown":
        options["process_set"] = process_set or hvd.ProcessSet([0])
    refusal = adapter.refusal(row, size)
    if refusal is not None:
        return _refused(adapter, row, operands, options, refusal)
    results = adapter.call(row.operation, operands, options)
    want = row.expected(place, size)
    if row.operation == "alltoall" and len(results) == 1:
        want = want[:1]
    assert len(results) == len(want), f"{len(results)} results instead of {len(want)}"
    for result, value in zip(results, want, strict=True):
        same(adapter, result, value)
    if row.operation.endswith("_"):
        for operand, value in zip(operands, want, strict=True):
            same(adapter, operand, value)
    else:
        for operand, value in zip(operands, values, strict=True):
            same(adapter, operand, value)  # it is not written to
    return ""


def _name(row: Row) -> str:
    return re.sub(r"\W+", ".", row.name)


def _refused(adapter: Adapter, row: Row, operands: list[Any], options: dict[str, Any], refusal: Refusal) -> str:
    """The call raises the error; a sum that begins before it and one of the same name after it are right."""
    numbers = Value(np.array([2.0, 3.0]), "float32")
    total = Value(numbers.numbers * adapter.hvd.size(), "float32")
    wait = adapter.begin(numbers)
    try:
        made = adapter.call(row.operation, operands, options)
    except Exception as error:
        kind, text = adapter.meant(error)
    else:
        raise AssertionError(f"no error, but {made}")
    if wait is not None:
        same(adapter, wait(), total)
    (result,) = adapter.call("allreduce", [adapter.array(numbers)], {"name": options["name"], "op": "Sum"})
    same(adapter, result, total)
    assert kind == refusal.kind, f"{kind} instead of {refusal.kind}: {text}"
    assert refusal.text in text, f"{text!r} does not say {refusal.text!r}"
    assert "hvd_kernel.errors" not in text
    return text if kind == "Mismatch" else ""


def same(adapter: Adapter, result: Any, value: Value) -> None:
    """Equal means: same type, same shape, same numbers."""
    (dtype, got), (_, want) = adapter.read(result), adapter.read(adapter.array(value))
    assert dtype == value.dtype, f"{dtype} instead of {value.dtype}"
    assert got.shape == want.shape, f"shape {got.shape} instead of {want.shape}"
    if not np.array_equal(got, want):
        at = np.flatnonzero(got.ravel() != want.ravel())[:5]
        raise AssertionError(f"at {at.tolist()}: {got.ravel()[at]} instead of {want.ravel()[at]}")


# What is more than one call


def _sets(adapter: Adapter) -> None:
    """Two sets that share no rank go on apart; a rank that is no member is refused."""
    hvd = adapter.hvd
    hvd.shutdown()
    hvd.init(process_sets="dynamic")
    rank, size = hvd.rank(), hvd.size()
    teams = [team for team in (list(range(0, size, 2)), list(range(1, size, 2))) if len(team) < size and team]
    sets = [hvd.add_process_set(team) for team in teams]
    rows = [row for row in in_a_set() if adapter.supports(row, size)]
    for team, process_set in zip(teams, sets, strict=True):
        assert (process_set.ranks, process_set.included()) == (team, rank in team)
        for row in rows:
            if rank in team:
                _run(adapter, row, team, process_set)
            else:
                verb = row.operation.removeprefix("grouped_").capitalize()
                text = f"{verb}: Rank {rank} is not a member of the provided process set."
                _raises(adapter, row, "ValueError", text, process_set)
    for row in rows:
        _run(adapter, row)
    for process_set in sets:
        hvd.remove_process_set(process_set)
    hvd.shutdown()
    hvd.init()


def _life(adapter: Adapter) -> None:
    """Nothing works before init, and everything after a second one."""
    hvd = adapter.hvd
    rows = [row for row in in_a_set() if adapter.supports(row, hvd.size())]
    hvd.shutdown()
    text = str(NotInitialized())
    raises(NotInitialized, text, hvd.rank)
    for row in rows:
        _raises(adapter, row, "HorovodInternalError", text)
    hvd.init()
    for row in rows:
        _run(adapter, row)


def _raises(adapter: Adapter, row: Row, kind: str, text: str, process_set: Any = None) -> None:
    options = dict(row.options(0, 1)) | ({} if process_set is None else {"process_set": process_set})
    try:
        adapter.call(row.operation, [adapter.array(value) for value in row.operands(0, 1)], options)
    except Exception as error:
        meant, message = adapter.meant(error)
    else:
        raise AssertionError(f"{row.name}: no error")
    assert (meant, text in message) == (kind, True), f"{row.name}: {meant}: {message}"


def _uneven_batches(adapter: Adapter) -> None:
    """Rank r has r + 1 batches, then joins: reductions without it contain nothing of it."""
    hvd = adapter.hvd
    rank, size = hvd.rank(), hvd.size()
    for batch in range(rank + 1):
        mine = adapter.array(Value(np.full(3, rank + 1.0), "float32"))
        (result,) = adapter.call("allreduce", [mine], {"name": f"batch{batch}", "op": "Sum"})
        same(adapter, result, Value(np.full(3, float(sum(range(batch + 1, size + 1)))), "float32"))
    if hasattr(hvd, "join"):
        assert int(hvd.join()) == size - 1
    hvd.barrier()
    hvd.shutdown()  # the ranks have made different numbers of calls, by which those without a name are known
    hvd.init()


def _objects(adapter: Adapter) -> None:
    hvd = adapter.hvd
    rank, size = hvd.rank(), hvd.size()
    for root in range(size):
        assert hvd.broadcast_object({"of": rank, "list": ["x"] * rank}, root) == {"of": root, "list": ["x"] * root}
    assert hvd.broadcast_object(None if rank else [1], 0, name="of any type") == [1]
    assert hvd.allgather_object("x" * rank) == ["x" * other for other in range(size)]
    assert hvd.allgather_object([rank, None][rank % 2], name="mixed") == [[r, None][r % 2] for r in range(size)]


def _gradients(adapter: Adapter) -> None:
    size = adapter.hvd.size()
    for row in differentiated() if adapter.differentiates else ():
        place = adapter.hvd.rank()
        operands = [adapter.array(value) for value in row.operands(place, size)]
        own = [adapter.array(value) for value in weights(row, place, size)]
        options = dict(row.options(place, size)) | {"name": _name(row)}
        for results in adapter.gradients(row.operation, operands, options, own):
            for result, want in zip(results, gradients(row, place, size), strict=True):
                try:
                    same(adapter, result, want)
                except AssertionError as error:
                    error.add_note(row.name)
                    raise


def _broadcast_of_parameters(adapter: Adapter) -> None:
    """Parameters of every type are those of the root; a broadcast of none is no operation."""
    hvd = adapter.hvd
    for root in range(hvd.size()) if adapter.broadcasts_parameters else ():
        values = [[Value(numbers((3,), rank, dtype), dtype) for dtype in adapter.dtypes] for rank in (hvd.rank(), root)]
        mine, want = ({value.dtype: value for value in side} for side in values)
        results = adapter.broadcast_parameters({name: adapter.target(value) for name, value in mine.items()}, root)
        for name, result in results.items():
            same(adapter, result, want[name])


# Trainings

TRAININGS = "trainings"


def _wrong_trainings(adapter: Adapter, trainers: Mapping[str, type[Trainer]]) -> list[str]:
    """Return each training that differs from NumPy's, and each option that is not refused as it should be."""
    hvd, wrong = adapter.hvd, []
    hvd.shutdown()
    hvd.init(process_sets="dynamic")
    size = hvd.size()
    evens = hvd.add_process_set(list(range(0, size, 2))) if size > 1 else hvd.global_process_set
    for way, trainer in trainers.items():
        checks: dict[str, Callable[[], None]] = {
            row.name: partial(_train, adapter, trainer, row, evens)
            for row in trainings()
            if trainer.supports(row, size) and not (row.joins and not hasattr(hvd, "join"))
        }
        assert len(checks) > 5, f"{way} has {len(checks)} trainings"
        checks |= {name: partial(_refuse, adapter, trainer, name) for name in trainer.refuses()}
        for name, check in checks.items():
            try:
                check()
            except Exception as error:
                wrong.append(f"{way}, {name}: {type(error).__name__}: {error}")
    hvd.shutdown()
    hvd.init()
    return wrong


def _train(adapter: Adapter, kind: type[Trainer], row: Training, evens: Any) -> None:
    hvd = adapter.hvd
    options = {**row.options, **({"process_set": evens} if row.apart else {})}
    trainer, before = kind(adapter, options, row.local), metrics.snapshot().step
    steps = row.steps(hvd.rank())
    for step, want in zip(steps, row.expected(hvd.rank(), hvd.size()), strict=True):
        if step == LAST:
            assert int(hvd.join()) == hvd.size() - 1
        grads = row.gradients(hvd.rank(), step)
        trainer.step([[None if grad is None else adapter.array(grad) for grad in one] for one in grads])
        for result, value in zip(trainer.read(), want, strict=True):
            same(adapter, result, value)
    if kind.counts_steps and row.is_counted(hvd.rank()):
        assert metrics.snapshot().step - before == len(steps), "steps on the panel"


def _refuse(adapter: Adapter, kind: type[Trainer], name: str) -> None:
    options, text = REFUSED[name]
    unknown = {"process_set": adapter.hvd.ProcessSet([0])} if "process_set" in options else {}
    try:
        kind(adapter, options | unknown)
    except Exception as error:  # an optimizer raises plain errors, an operation the framework's own
        meant, message = ("ValueError", str(error)) if isinstance(error, ValueError) else adapter.meant(error)
    else:
        raise AssertionError("no error")
    assert (meant, text in message) == ("ValueError", True), f"{meant}: {message}"


SCENES: dict[str, Callable[[Adapter], None]] = {
    "gradients": _gradients,
    "process sets": _sets,
    "before and after init": _life,
    "uneven batches": _uneven_batches,
    "objects": _objects,
    "broadcast of parameters": _broadcast_of_parameters,
}
