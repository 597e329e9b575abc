"""Limits and texts of the guard against training apart, for ranks and for the processes that compare them."""

from __future__ import annotations

from hvd_kernel.protocol.messages import OptimizerSteps

KEPT = 4
"""Digests in a report: enough for ranks whose step counts differ by less than a factor of eight to share a step."""

LIVE_STEPS = 256
"""Steps without an exchange that are reported while the run goes on; local SGD exchanges more often."""

END_STEPS = 8
"""The same at the end of the run, when no exchange can follow."""

SHARED_STEPS = 1024
"""The same if the ranks have exchanged parameters before: they may average after many steps."""

SWITCH = (
    'If that is intended, `os.environ["HVD_GUARD"] = "off"` as first line of the cell or script turns this check off.'
)
APART = (
    "hvd_kernel: {ranks} train separate models: each has taken {steps} optimizer steps, and they have exchanged "
    "nothing. Wrap the optimizer, `optimizer = hvd.DistributedOptimizer(optimizer)` (MXNet: "
    "`hvd.DistributedTrainer`), and broadcast the parameters first, or use the integration of the library that trains "
    "(docs/guides/notebook/panel.md). {switch}"
)
DIFFER = (
    "hvd_kernel: the parameters of {ranks} differ since optimizer step {step}, though hvd.DistributedOptimizer reduces "
    "their gradients. Broadcast them before the first step, `hvd.broadcast_parameters(model.state_dict(), 0)`, and "
    "change gradients or parameters in the same way on all ranks; `%hvd check` compares them now. {switch}"
)


def nothing_exchanged(ranks: str, steps: int) -> str:
    """Return the warning for ranks that have taken at least this number of steps."""
    return APART.format(ranks=ranks, steps=steps, switch=SWITCH)


def parameters_differ(ranks: str, step: int) -> str:
    """Return the warning for ranks whose parameters differ since this step."""
    return DIFFER.format(ranks=ranks, step=step, switch=SWITCH)


def steps_allowed(steps: OptimizerSteps, *, over: bool) -> int:
    """Return how many steps an optimizer may take without an exchange."""
    if over:
        return SHARED_STEPS if steps.shared_ever and not steps.shared_in_run else END_STEPS
    return SHARED_STEPS if steps.shared_ever else LIVE_STEPS
