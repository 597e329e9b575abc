"""Guard against training apart: finds ranks that step the same model without exchanging anything, or that diverge.

Pure: it compares the reports of the ranks' optimizers in one run (a cell, or a job), and warns once in a run. It does
not compare optimizers of different models, optimizers of a single rank, and parameters that no DistributedOptimizer
reduces over all ranks, because ranks may keep them different on purpose.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from hvd_kernel.formatting.rank_labels import rank_list
from hvd_kernel.protocol.messages import MetricsSample, OptimizerSteps, ParameterDigest
from hvd_kernel.protocol.training_apart import nothing_exchanged, parameters_differ, steps_allowed

TOLERANCE = 1e-4
"""Largest relative difference of two digests that rounding on different processors explains."""


def warning_of(reports: Mapping[int, Sequence[OptimizerSteps]], over: Collection[int]) -> str:
    """Return the warning for the reports of the ranks; "" if none is due.

    Parameters
    ----------
    reports
        The optimizers of each rank.
    over
        Ranks that have finished the run.
    """
    groups: dict[tuple[int, str, bool], dict[int, OptimizerSteps]] = {}
    for rank, optimizers in sorted(reports.items()):
        for steps in optimizers:
            groups.setdefault((steps.number, steps.model, steps.reduced), {})[rank] = steps
    for (_number, _model, reduced), group in groups.items():
        if len(group) > 1 and (text := (_diverged if reduced else _apart)(group, over)):
            return text
    return ""


def _apart(group: Mapping[int, OptimizerSteps], over: Collection[int]) -> str:
    silent = all(
        not steps.exchanged and steps.steps >= steps_allowed(steps, over=rank in over) for rank, steps in group.items()
    )
    return nothing_exchanged(rank_list(group), min(steps.steps for steps in group.values())) if silent else ""


def _diverged(group: Mapping[int, OptimizerSteps], _over: Collection[int]) -> str:
    """Compare the latest two steps that all ranks have in common: a single one may be read in the middle of a step."""
    digests = {rank: {digest.step: digest for digest in steps.digests} for rank, steps in group.items()}
    common = sorted(set.intersection(*(set(by_step) for by_step in digests.values())))
    unequal = [step for step in common if _differ([by_step[step] for by_step in digests.values()])]
    is_lasting = len(common) > 1 and unequal[-2:] == common[-2:]
    return parameters_differ(rank_list(group), unequal[0]) if is_lasting else ""


def _differ(digests: Sequence[ParameterDigest]) -> bool:
    finite = [(value, scale) for _, value, scale in digests if value is not None and scale is not None]
    if len(finite) < len(digests):
        return bool(finite)
    values = [value for value, _ in finite]
    return max(values) - min(values) > TOLERANCE * max(scale for _, scale in finite)


class TrainingApart:
    """The guard of one run: feed it the samples of its ranks."""

    def __init__(self, ranks: Iterable[int]) -> None:
        self._ranks = set(ranks)
        self._reports: dict[int, Sequence[OptimizerSteps]] = {}
        self._over: set[int] = set()
        self.warning = ""

    def observe(self, sample: MetricsSample) -> str:
        """Accept a sample; return the warning of this run when it is due, else ""."""
        if self.warning or sample.rank not in self._ranks:
            return ""
        before = self._reports.get(sample.rank, ())
        self._reports[sample.rank] = sample.optimizers
        if sample.state == "idle":
            self._over.add(sample.rank)
        elif sample.optimizers == before:
            return ""
        self.warning = warning_of(self._reports, self._over)
        return self.warning
