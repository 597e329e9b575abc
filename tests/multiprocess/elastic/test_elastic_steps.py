"""A StepGuard keeps every step that all ranks have: a rank that is killed costs the step that it was in, no other."""

from __future__ import annotations

import signal

import pytest
from hvdtest.exact import same
from hvdtest.launch import RankPool
from hvdtest.pools import layouts

pytestmark = pytest.mark.mp

SAMPLES, BATCH, STEPS = 60, 4, 5
layout = layouts((2, "shm"), nightly=((3, "tcp"),))


class Guarded:
    """A network and its samples; ``fail`` is called at four places of each step."""

    def __init__(self) -> None:
        import torch

        import hvd_kernel.torch as hvd

        torch.manual_seed(7)
        torch.set_num_threads(1)
        self.model = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.BatchNorm1d(8), torch.nn.Linear(8, 3))
        self.optimizer = hvd.DistributedOptimizer(
            torch.optim.Adam(self.model.parameters(), lr=0.05), named_parameters=self.model.named_parameters()
        )
        self.images = torch.rand(SAMPLES, 6, generator=torch.Generator().manual_seed(3))
        self.sampler = hvd.elastic.ElasticSampler(self.images, seed=5)
        self.state = hvd.elastic.TorchState(
            self.model, self.optimizer, sampler=self.sampler, generator=torch.Generator().manual_seed(1), batch=0
        )
        self.calls = 0
        self.after: list[dict[str, object]] = []  # each step

    def train(self, state: object, fail: object) -> int:
        import torch

        import hvd_kernel.torch as hvd

        guard = hvd.elastic.StepGuard(state)
        while state.batch < STEPS:
            if len(self.after) == state.batch:
                self.after.append(self.values())
            self.calls += 1
            self.optimizer.zero_grad()
            fail(self, "before")
            samples = self.sampler.get_indices(0, BATCH)
            noise = torch.rand(BATCH, 3, generator=state.generator)
            (self.model(self.images[samples]) * noise).sum().backward()
            fail(self, "backward")
            self.sampler.record_batch(state.batch, BATCH)
            with guard:
                fail(self, "voted")
                self.optimizer.step()
                state.batch += 1
            fail(self, "stepped")
            self.sampler.reset()
        return self.calls

    def values(self) -> dict[str, object]:
        states = self.optimizer.state_dict()["state"]
        tensors = {f"model.{name}": tensor.detach().clone() for name, tensor in self.model.state_dict().items()}
        for number, state in states.items():
            tensors |= {f"state.{number}.{k}": v.clone() for k, v in state.items()}
        tensors["generator"] = self.state.generator.get_state()
        return tensors


def never(training: Guarded, place: str) -> None:
    pass


def assert_after(got: dict[str, object], want: dict[str, object], *, but: str = "nothing") -> None:
    assert got.keys() == want.keys()
    for name, tensor in got.items():
        if but not in name:
            same(tensor, want[name], name)


def killed(failing: int, step: int, place: str) -> list[int]:
    """One rank is killed; the others then have the state that they had after the same number of steps without a failure."""
    import os

    import hvd_kernel.torch as hvd

    hvd.init()
    undisturbed = Guarded()
    undisturbed.train(undisturbed.state, never)

    def kill(training: Guarded, here: str) -> None:
        if (training.state.batch, here) == (step, place) and hvd.rank() == failing:
            os.kill(os.getpid(), signal.SIGKILL)

    training = Guarded()
    with pytest.raises(hvd.HorovodInternalError):
        training.train(training.state, kill)
    hvd.shutdown()
    os.environ["HVD_BOOTSTRAP"] = "none"  # alone: no process replaces the killed one
    hvd.init()
    training.state.recover()
    done = training.state.batch
    assert_after(training.values(), undisturbed.after[done])
    agreed, _ = training.sampler.agreed_and_since()
    processed = agreed["processed_num"] + len(agreed["processed_indices"])
    assert processed == 3 * BATCH * done, "those of the rank that is gone too"
    return [done, training.state.commit_number]


@pytest.mark.parametrize(
    ("failing", "place"),
    [(2, "backward"), *(pytest.param(r, p, marks=pytest.mark.nightly) for r in (0, 1) for p in ("before", "voted"))],
)
def test_a_killed_rank_costs_one_step(failing: int, place: str) -> None:
    with RankPool(3, "shm") as pool:
        found = pool.run(killed, failing, 3, place, gone={failing: -signal.SIGKILL})
    done = [each for each in found if each is not None]
    may_have_voted = {3, 4} if place == "voted" else {3}
    assert {steps for steps, _ in done} <= may_have_voted
    assert all(steps == number for steps, number in done), "no commit was there to go back to"


def goes_on(place: str) -> list[int]:
    """Fail on one rank: all continue from the last step, and end with the result of training without it."""
    import hvd_kernel.torch as hvd

    hvd.init()
    undisturbed = Guarded()
    undisturbed.train(undisturbed.state, never)
    failed: list[int] = []

    def fail(training: Guarded, here: str) -> None:
        if here == place and training.state.batch == 2 + len(failed) and hvd.rank() == len(failed) and not failed:
            failed.append(1)
            raise hvd.HorovodInternalError("mine")

    training = Guarded()
    calls = hvd.elastic.run(training.train)(training.state, fail)
    own = "nothing" if hvd.rank() == 0 else "running"  # of rank 0, since all have taken them
    assert_after(training.values(), undisturbed.values(), but=own)
    assert training.sampler.state_dict() == undisturbed.sampler.state_dict()
    return [calls, training.state.commit_number]


@pytest.mark.parametrize(
    "place", ["before", *(pytest.param(p, marks=pytest.mark.nightly) for p in ("backward", "stepped"))]
)
def test_a_failure_costs_one_step(ranks: RankPool, place: str) -> None:
    found = ranks.run(goes_on, place)
    assert all(calls <= STEPS + 1 for calls, _ in found), "no step but the failed one is done again"
    assert {number for _, number in found} == {STEPS}
