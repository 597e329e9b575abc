"""Training with failures ends with the bits of a training without them: every rank survives and restores its state."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from hvdtest.exact import raises, same
from hvdtest.launch import RankPool
from hvdtest.pools import layout_id, layouts

from hvd_kernel.errors import Mismatch, RankFailed

pytestmark = pytest.mark.mp

SAMPLES, BATCH, EPOCHS = 46, 4, 2
layout = layouts((2, "shm"), (3, "tcp"), nightly=((1, "auto"), (4, "shm")))


class Training:
    """A network, its optimizer and schedule, the samples it has seen; ``fail`` is called at three places of each step."""

    def __init__(self, optimizer: str = "Adam", commit_every: int = 1) -> None:
        import torch

        import hvd_kernel.torch as hvd

        torch.manual_seed(7 + hvd.rank())
        torch.set_num_threads(1)
        self.model = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.BatchNorm1d(8), torch.nn.Linear(8, 3))
        made = {
            "Adam": lambda p: torch.optim.Adam(p, lr=0.05),
            "SGD": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=1e-3),
        }[optimizer](self.model.parameters())
        self.scheduler = torch.optim.lr_scheduler.StepLR(made, 3, gamma=0.5)
        self.optimizer = hvd.DistributedOptimizer(made, named_parameters=self.model.named_parameters())
        generator = torch.Generator().manual_seed(3)
        self.images = torch.rand(SAMPLES, 6, generator=generator)
        self.labels = torch.randint(0, 3, (SAMPLES,), generator=generator)
        self.sampler = hvd.elastic.ElasticSampler(self.images, shuffle=True, seed=5)
        self.commit_every = commit_every
        self.steps = 0  # of this rank, those that were undone too
        self.state = hvd.elastic.TorchState(
            model=self.model,
            optimizer=self.optimizer,
            scheduler=self.scheduler,
            sampler=self.sampler,
            epoch=0,
            batch=0,
            losses=[],
            seen=[],
        )

    def run(self, fail: object, **limits: int) -> object:
        import hvd_kernel.torch as hvd

        return hvd.elastic.run(self.epochs, **limits)(self.state, fail)

    def epochs(self, state: object, fail: object) -> str:
        while state.epoch < EPOCHS:
            for index in range(0, len(self.sampler), BATCH):
                self.step(state, self.sampler.get_indices(index // BATCH, BATCH), fail)
            state.epoch, state.batch = state.epoch + 1, 0
            self.sampler.set_epoch(state.epoch)
            state.commit()
        return "done"

    def step(self, state: object, samples: list[int], fail: object) -> None:
        import torch

        import hvd_kernel.torch as hvd

        fail(self, "before")
        self.optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(self.model(self.images[samples]), self.labels[samples])
        loss.backward()
        fail(self, "backward")
        self.optimizer.step()
        self.scheduler.step()
        state.losses.append(float(hvd.allreduce(loss.detach(), name="loss")))
        state.seen.append(hvd.allgather_object(samples, name="samples"))
        state.batch += 1
        self.sampler.record_batch(state.batch - 1, BATCH)
        fail(self, "stepped")
        self.steps += 1
        if state.batch % self.commit_every == 0:
            state.commit()

    def kept(self) -> dict[str, object]:
        """Buffers are each rank's own until a sync makes them rank 0's; only there they are the undisturbed ones."""
        import hvd_kernel.torch as hvd

        return self.model.state_dict() if hvd.rank() == 0 else dict(self.model.named_parameters())

    def result(self) -> dict[str, object]:
        import torch

        states = self.optimizer.state_dict()["state"]
        tensors = {f"model.{name}": tensor.detach().clone() for name, tensor in self.kept().items()}
        for number, state in states.items():
            tensors |= {f"state.{number}.{k}": v.clone() for k, v in state.items() if isinstance(v, torch.Tensor)}
        return tensors


def never(training: object, place: str) -> None:
    pass


def assert_equal(got: Training, want: Training) -> None:
    assert (got.state.epoch, got.state.seen) == (EPOCHS, want.state.seen), (
        f"{got.state.seen} instead of {want.state.seen}"
    )
    assert got.state.losses == want.state.losses
    assert got.optimizer.param_groups[0]["lr"] == want.optimizer.param_groups[0]["lr"] < 0.1
    assert got.scheduler.get_last_lr() == want.scheduler.get_last_lr()
    expected = want.result()
    assert got.result().keys() == expected.keys()
    for name, tensor in got.result().items():
        same(tensor, expected[name], name)


def recovered(kind: str, optimizer: str, commit_every: int) -> list[int]:
    """Train undisturbed; train with failures; compare. Gives back how often the ranks met again, and how often they failed."""
    import torch

    import hvd_kernel.torch as hvd
    from hvd_kernel.core import session

    hvd.init()
    rank, size = hvd.rank(), hvd.size()
    undisturbed = Training(optimizer, commit_every)
    assert undisturbed.run(never) == "done"
    # One each time that the ranks have met: when so many steps are done, at that place. What a rank has seen of a step
    # that was undone is its own affair, and says nothing to the others.
    failures = [(1, "before"), (1, "backward"), (4, "stepped"), (5, "before")]
    failed: set[int] = set()

    def fail(training: Training, place: str) -> None:
        number = session.generation() - generation
        if number in failed or (len(training.state.losses), place) not in failures[number : number + 1]:
            return
        if kind != "mismatch" and rank != number % size:
            return
        failed.add(number)
        if kind == "raise":
            raise hvd.HorovodInternalError("mine")
        if kind == "abort":
            session.engine().abort("somebody pulled the plug")
        if kind == "mismatch":
            hvd.allreduce(torch.ones(2 + (rank == number % size)), name="odd")
        if kind == "shutdown":
            hvd.shutdown()

    generation = session.generation()
    disturbed = Training(optimizer, commit_every)
    assert disturbed.run(fail) == "done"
    assert_equal(disturbed, undisturbed)
    return [session.generation() - generation, len(failed)]


@pytest.mark.parametrize(
    ("kind", "optimizer"), [("raise", "Adam"), ("abort", "SGD"), ("mismatch", "Adam"), ("shutdown", "SGD")]
)
def test_failures_do_not_change_the_result(ranks: RankPool, kind: str, optimizer: str) -> None:
    found = ranks.run(recovered, kind, optimizer, 2)
    assert len({met for met, _ in found}) == 1, "all ranks met equally often"
    failures = sum(failed for _, failed in found)
    nobody_to_disagree_with = ranks.np == 1 and kind == "mismatch"
    assert failures == (1 if nobody_to_disagree_with else 4 * ranks.np if kind == "mismatch" else 4)
    assert found[0][0] == (0 if nobody_to_disagree_with else 4)


def limits() -> None:
    import hvd_kernel.torch as hvd
    from hvd_kernel.core import session

    hvd.init()
    training = Training()
    tries: list[int] = []

    @hvd.elastic.run(reset_limit=2)
    def hopeless(state: object) -> None:
        tries.append(state.epoch)
        state.epoch += 1
        raise hvd.HorovodInternalError("again")

    said = "Job has been shutdown after exceeding maximum number of resets (2). The last cause: "
    with pytest.raises(hvd.HorovodInternalError, match=re.escape(said)):  # its own, or another rank's that was first
        hopeless(training.state)
    assert set(tries) <= {0}, "each time from the same state"
    assert len(tries) <= 3, "another rank's failure may come before this one's call"
    session.shutdown()


def disagreeing() -> list[int]:
    """Ranks whose shapes differ: after a commit each time, then without one."""
    import torch

    import hvd_kernel.torch as hvd

    hvd.init()
    tries: list[int] = []
    if hvd.size() == 1:
        return tries  # one rank agrees with itself

    @hvd.elastic.run
    def train(state: Any) -> None:
        tries.append(state.done)
        if state.done < 3:
            state.done += 1
            state.commit()
        hvd.allreduce(torch.ones(2 + hvd.rank()), name="disagreeing")

    with pytest.raises(hvd.HorovodInternalError, match="Mismatched ALLREDUCE tensor shapes") as raised:
        train(hvd.elastic.ObjectState(done=0))
    assert isinstance(raised.value, Mismatch | RankFailed), "its own, or another rank's that was first"
    hvd.shutdown()
    return tries


def test_repeated_mismatch_reaches_the_user(ranks: RankPool) -> None:
    if len(found := ranks.run(disagreeing)) > 1:
        assert found == [[0, 1, 2, 3]] * len(found)


def test_a_limit_of_resets(ranks: RankPool) -> None:
    ranks.run(limits)


def somebody_leaves() -> None:
    """A rank that leaves by another exception is not awaited, and every rank gets the reason.

    While it does not say so the program may go on, as one does that all ranks leave by an exception of its own.
    """
    import hvd_kernel.torch as hvd
    from hvd_kernel.core import session
    from hvd_kernel.errors import RankFailed

    hvd.init()
    training = Training()

    def leave(training: object, place: str) -> None:
        if (training.steps, place) == (3, "backward") and hvd.rank() == hvd.size() - 1:
            raise KeyError("my bug")

    def stop_early(training: object, place: str) -> None:
        if (training.steps, place) == (2, "before"):
            raise StopAsyncIteration

    raises(StopAsyncIteration, "", Training().run, stop_early)
    hvd.barrier()
    if hvd.rank() == hvd.size() - 1:
        error = raises(KeyError, "my bug", training.run, leave)
        session.engine().abort(f"KeyError: {error} {error.__notes__[0]}")  # as a notebook's rank does
    else:
        sentence = (
            f"Rank {hvd.size() - 1} failed: KeyError: 'my bug' (elastic.run ended: this rank does not come back to it)"
        )
        raises(RankFailed, sentence, training.run, leave)
    session.shutdown()


def test_ranks_do_not_wait_for_a_rank_that_left(ranks: RankPool) -> None:
    ranks.run(somebody_leaves)  # within a check's time: they would wait for 600 s


def meets_again_late(slow: int, seconds: float) -> float:
    """One rank is slow to return: the start timeout would have expired, that of elastic.run has not."""
    import os
    import time

    import torch

    import hvd_kernel.torch as hvd
    from hvd_kernel import elastic
    from hvd_kernel.core import process_sets

    hvd.init()
    rank, failed = hvd.rank(), []

    def sleep_first() -> None:
        hvd.shutdown()
        time.sleep(seconds)
        process_sets.reset_communicator()

    def work(_: object) -> float:
        if not failed:
            failed.append(1)
            hvd.barrier()
            os.environ["HVD_START_TIMEOUT"] = "60" if rank == slow else f"{seconds / 2:g}"
            raise hvd.HorovodInternalError("all")
        return float(hvd.allreduce(torch.ones(3), op=hvd.Sum, name="after")[0])

    try:
        total = elastic.run_fn(work, sleep_first if rank == slow else None)(elastic.ObjectState(x=0))
    finally:
        os.environ.pop("HVD_START_TIMEOUT", None)
    hvd.shutdown()
    return total


@pytest.mark.parametrize("slow", [0, pytest.param(1, marks=pytest.mark.nightly)])
@pytest.mark.parametrize("layout", [(2, "shm")], ids=layout_id)
def test_slow_rank_is_awaited_for_the_elastic_timeout(ranks: RankPool, slow: int) -> None:
    assert ranks.run(meets_again_late, slow, 2.0) == [2.0, 2.0]


def ends_while_the_others_meet(failing: int, later: bool, folder: str) -> None:
    """A rank's process exits when its old engine is gone and its new one does not exist: only its pid shows it.

    ``later``: when the others wait for it already, with their old engines gone too.
    """
    import os
    import threading
    import time

    import hvd_kernel.torch as hvd
    from hvd_kernel import elastic
    from hvd_kernel.core import session
    from hvd_kernel.errors import RankDied

    hvd.init()
    rank, size = hvd.rank(), hvd.size()

    def end() -> None:
        hvd.shutdown()
        while later and len(list(Path(folder).iterdir())) < size - 1:
            time.sleep(0.001)
        os._exit(3)

    def tell_that_it_is_over() -> None:
        while session.is_initialized():
            time.sleep(0.001)
        Path(folder, str(rank)).touch()

    def work(_: object) -> None:
        hvd.barrier()
        raise hvd.HorovodInternalError("all")

    training = elastic.run_fn(work, end if rank == failing else None)
    threading.Thread(target=tell_that_it_is_over).start()
    sentence = f"rank {failing} exited before the ranks could rendezvous again"
    error = raises(RankDied, sentence, training, elastic.ObjectState(x=0))
    assert error.rank == failing
    assert "hvdrun --min-np" in error.__notes__[0]


@pytest.mark.parametrize(
    ("failing", "later"),
    [(0, True), *(pytest.param(*each, marks=pytest.mark.nightly) for each in [(2, True), (1, False)])],
)
def test_rank_that_exited_is_not_awaited(failing: int, later: bool, tmp_path: Path) -> None:
    with RankPool(3, "shm") as pool:  # the others would wait for 600 s
        pool.run(ends_while_the_others_meet, failing, later, str(tmp_path), gone={failing: 3})


def hosts_change(rounds: int) -> None:
    """Rank 0 is notified; all meet again with their state; nothing is restored."""
    import hvd_kernel.torch as hvd
    from hvd_kernel.core import session

    hvd.init()
    rank = hvd.rank()
    state = hvd.elastic.ObjectState(hvd.broadcast_object, hvd.rank, done=0, who=[rank])
    called: list[int] = []
    state.register_reset_callbacks([lambda: called.append(hvd.size())])

    @hvd.elastic.run
    def work(state: object) -> tuple[int, list[int]]:
        while state.done < rounds:
            state.done += 1
            state.who.append(rank)
            if rank == 0:
                update = hvd.elastic.HostUpdateResult
                change = update.removed if state.done % 2 else update.added
                hvd.elastic.notification_manager.handle_hosts_updated(state.done, change)
            state.check_host_updates()
        return state.done, state.who

    generation = session.generation()
    done, who = work(state)
    assert done == rounds, "nothing that was done is done again"
    assert session.generation() - generation == rounds == len(called)
    assert set(called) == {hvd.size()}
    # Hosts that only go leave all as they are (no sync): after the others everything is rank 0's.
    assert who[:rounds] == [0] * rounds
    state.commit()


def test_change_of_hosts(ranks: RankPool) -> None:
    ranks.run(hosts_change, 20)


def sets_and_samples() -> None:
    """Process sets exist again after a recovery; samples that ranks recorded separately are not assigned twice."""
    import torch

    import hvd_kernel.torch as hvd

    hvd.shutdown()
    hvd.init(process_sets="dynamic")
    rank, size = hvd.rank(), hvd.size()
    last = hvd.add_process_set([size - 1]) if size > 1 else hvd.global_process_set
    gone = hvd.add_process_set([0]) if size > 1 else None
    assert gone is None or hvd.remove_process_set(gone)
    sampler = hvd.elastic.ElasticSampler(range(20), shuffle=False)
    state = hvd.elastic.TorchState(sampler=sampler, calls=0)
    mine = sampler.get_indices(0, 2)
    tries: list[int] = []

    @hvd.elastic.run
    def work(state: object) -> list[int]:
        tries.append(rank)
        if len(tries) == 1:
            sampler.record_indices(mine)
            state.calls += 1
            state.commit()
            sampler.record_indices(sampler.get_indices(1, 1))
            state.calls += 1
            hvd.barrier()  # all have committed
            raise hvd.HorovodInternalError("mine")
        return list(sampler)

    dealt = work(state)
    assert state.calls == 1, "what was not committed is undone"
    left = set(range(2 * size, 20))
    everywhere = {index for each in hvd.allgather_object(dealt) for index in each}
    assert everywhere - set(range(-len(left) % size)) == left, "and the order's first, where it does not divide"
    assert len(dealt) == len(sampler) == -(-len(left) // size)
    assert last.process_set_id is not None
    if rank == size - 1:
        same(hvd.allreduce(torch.full((2,), 3.0), name="alone", process_set=last), torch.full((2,), 3.0))
    assert gone is None or gone.process_set_id is None
    extra = hvd.add_process_set([0, 1]) if size > 2 else None
    assert extra is None or extra.included() == (rank < 2), "sets are still dynamic"
    hvd.barrier()  # a rank that shuts down ends what the others still do
    hvd.shutdown()


def test_process_sets_and_recorded_samples(ranks: RankPool) -> None:
    ranks.run(sets_and_samples)
