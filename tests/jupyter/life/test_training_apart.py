"""Real ranks that train separate models are warned once, in cell, panel and log; those that train together never are."""

from __future__ import annotations

import pytest
from hvdtest.cluster import execute
from hvdtest.kernel import Kernel

from hvd_kernel.cluster import Session
from hvd_kernel.diagnosis.training_apart import TrainingApart
from hvd_kernel.protocol.messages import MetricsSample
from hvd_kernel.protocol.training_apart import nothing_exchanged, parameters_differ

pytestmark = [pytest.mark.jupyter, pytest.mark.mp, pytest.mark.timeout(240)]

RANKS = range(2)
PLAIN = """import torch
{before}
torch.manual_seed(rank)
model = torch.nn.Linear(64, 64)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
{wrap}
for step in range({steps}):
    optimizer.zero_grad()
    model(torch.randn(4, 64)).pow(2).mean().backward()
    {sync}
    optimizer.step()
    {after}"""
WRAP = "optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())"
BROADCAST = "hvd.broadcast_parameters(model.state_dict(), 0)"
BY_HAND = "for p in model.parameters(): p.grad = hvd.allreduce(p.grad)"
AVERAGE = "if step % 16 == 15:\n        for p in model.parameters(): p.data = hvd.allreduce(p.data)"


def cell(steps: int = 20, *, before: str = "", wrap: str = "", sync: str = "", after: str = "") -> str:
    return PLAIN.format(steps=steps, before=before, wrap=wrap, sync=sync, after=after)


def warning(session: Session, code: str) -> str:
    """Return the guard's warning about a run."""
    guard = TrainingApart(RANKS)
    outcome = execute(session, code)
    assert not outcome.failures
    texts = [guard.observe(event) for event in outcome.events if isinstance(event, MetricsSample)]
    assert len(list(filter(None, texts))) <= 1
    return guard.warning


@pytest.mark.cluster(2, env={"HVD_GUARD": "on"})  # ranks of its own: what earlier cells exchanged counts
def test_d10_plain_optimizers_are_warned_in_cell_and_log(kernel: Kernel) -> None:
    expected = nothing_exchanged("ranks 0-1", 20)
    outcome = kernel.run(f"%%hvdrun\n{cell()}")
    assert outcome.text("stderr").count(expected) == 1
    assert expected in kernel.run("%hvdlogs --ranks 0").text("stderr")
    outcome = kernel.run(f"%%hvdrun\n{cell(wrap=WRAP + chr(10) + BROADCAST)}")
    assert "hvd_kernel:" not in outcome.text("stderr")


@pytest.mark.cluster(2)
def test_parameters_that_become_nan_are_compared_silently(kernel: Kernel) -> None:
    code = cell(wrap=f"{BROADCAST}; {WRAP}", after="model.weight.data.fill_(float('nan') if step else 0.0)")
    outcome = kernel.run(f"%%hvdrun\n{code}\nprint(step)")
    assert (outcome.text(), outcome.text("stderr")) == ("[0-1] 19\n", "")


@pytest.mark.cluster(2)
def test_ranks_that_train_together_are_not_warned(session: Session) -> None:
    for code in (
        cell(wrap=f"{WRAP}\n{BROADCAST}"),
        cell(sync=BY_HAND),
        cell(48, after=AVERAGE),
        cell(before="import os; os.environ['HVD_GUARD'] = 'off'"),
        cell(before="import os; del os.environ['HVD_GUARD']", steps=4),
        "if rank == 0:\n    " + cell().replace("\n", "\n    "),
        cell().replace("Linear(64, 64)", "Linear(64, 64 + rank)"),
    ):
        assert warning(session, code) == "", code


@pytest.mark.cluster(2)
def test_d10_diverging_parameters_are_named_with_their_step(session: Session) -> None:
    edit = "if step == 8 and rank == 1: model.weight.data.add_(1.0)"
    code = cell(40, wrap=f"{WRAP}\n{BROADCAST}", after=edit)
    assert warning(session, code) == parameters_differ("ranks 0-1", 16)
    unequal_from_the_start = {parameters_differ("ranks 0-1", step) for step in (1, 2, 4)}  # the oldest one kept
    assert warning(session, cell(40, wrap=WRAP)) in unequal_from_the_start


@pytest.mark.cluster(2)
def test_a_broadcast_alone_is_no_exchange_of_gradients(session: Session) -> None:
    assert warning(session, cell(wrap=BROADCAST)) == nothing_exchanged("ranks 0-1", 20)
