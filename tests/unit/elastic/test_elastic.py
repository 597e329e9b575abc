"""Elastic state and sampler in one process, a cluster of one: kept state, undone state, assigned samples."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import pytest
import torch

import hvd_kernel.torch as hvd
from hvd_kernel import elastic
from hvd_kernel.core import session
from hvd_kernel.elastic import membership
from hvd_kernel.elastic import state as states
from hvd_kernel.errors import (
    ConfigError,
    HorovodInternalError,
    HostsUpdatedInterrupt,
    HvdTimeout,
    Mismatch,
    OutOfMemory,
    RankDied,
    RankFailed,
    StateLost,
)
from hvd_kernel.settings import lookup
from hvd_kernel.torch.elastic import TorchState
from hvd_kernel.torch.elastic.state import StateHandler, get_handler_registry, set_handler_registry

pytestmark = pytest.mark.usefixtures("alone")


def test_changes_in_place_are_undone_repeatedly() -> None:
    state = elastic.ObjectState(epoch=1, history=[1])
    for _ in range(2):
        state.history.append(2)
        state.epoch = 7
        state.restore()
        assert (state.epoch, state.history) == (1, [1])
    state.history.append(5)
    state.commit()
    state.history.clear()
    state.restore()
    assert state.history == [1, 5]


def model_and_optimizer() -> tuple[torch.nn.Module, torch.optim.Optimizer, Any]:
    torch.manual_seed(0)
    model = torch.nn.Linear(3, 2)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    return model, optimizer, torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)


def step(model: torch.nn.Module, optimizer: Any) -> None:
    model(torch.ones(4, 3)).sum().backward()
    optimizer.step()


def copied(model: torch.nn.Module, optimizer: Any) -> list[Any]:
    tensors = [*model.state_dict().values(), *(t for s in optimizer.state_dict()["state"].values() for t in s.values())]
    return [tensor.clone() for tensor in tensors]


def test_models_optimizers_schedulers_and_scalers() -> None:
    model, plain, scheduler = model_and_optimizer()
    optimizer = hvd.DistributedOptimizer(plain, named_parameters=model.named_parameters())
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    state = TorchState(model, optimizer, scheduler=scheduler, scaler=scaler, batch=0)
    assert (state.model, state.optimizer, state.scheduler) == (model, optimizer, scheduler)
    step(model, optimizer)
    scheduler.step()
    state.save()
    kept = copied(model, optimizer)
    for _ in range(2):  # torch may keep the tensors it loads: the second time must find the same
        step(model, optimizer)
        scheduler.step()
        scaler.scale(torch.ones(1))
        scaler.update(64.0)
        state.batch = 5
        assert any(not torch.equal(a, b) for a, b in zip(kept, copied(model, optimizer), strict=True))
        state.restore()
        assert all(torch.equal(a, b) for a, b in zip(kept, copied(model, optimizer), strict=True))
        assert [p.grad for p in model.parameters()] == [None, None], "the failed step's gradients are not state"
        assert (state.batch, scheduler.last_epoch, scaler.get_scale()) == (0, 1, 8.0)
        assert optimizer.param_groups[0]["lr"] == 0.05
    scheduler.step()
    assert optimizer.param_groups[0]["lr"] == 0.025, (
        "a scheduler made before the optimizer was wrapped still reaches it"
    )


def test_an_attribute_with_a_handler_is_replaced_and_kept() -> None:
    model, optimizer, _ = model_and_optimizer()
    state = TorchState(model=None, optimizer=optimizer, epoch=0)
    state.model = model
    other = torch.nn.Linear(2, 2)
    before = other.weight.detach().clone()
    state.model = other
    with torch.no_grad():
        other.weight += 1
    state.restore()
    assert state.model is other
    assert torch.equal(other.weight, before)
    state.note = "not tracked"
    state.restore()
    assert state.note == "not tracked"


def test_interrupted_commit_is_discarded() -> None:
    class Fails(StateHandler):
        def save(self) -> None:
            raise HorovodInternalError("in the middle of a commit")

    class Awkward:
        def state_dict(self) -> dict[str, int]:
            return {}

        def load_state_dict(self, _: Any) -> None: ...

    registry = get_handler_registry()
    set_handler_registry([*registry, (Awkward, Fails)])
    try:
        model, optimizer, _ = model_and_optimizer()
        state = TorchState(model, optimizer, awkward=Awkward(), batch=0)
    finally:
        set_handler_registry(registry)
    kept = copied(model, optimizer)
    step(model, optimizer)
    state.batch = 1
    with pytest.raises(HorovodInternalError, match="in the middle"):
        state.commit()
    state.restore()
    assert state.batch == 0
    assert all(torch.equal(a, b) for a, b in zip(kept, copied(model, optimizer), strict=True))


def test_change_of_hosts() -> None:
    state = elastic.ObjectState(done=0)
    update = elastic.HostUpdateResult
    state.check_host_updates()
    for heard, skip in [([update.removed], True), ([update.added], False), ([update.removed, update.added], False)]:
        for change in heard:
            state.on_hosts_updated(state._last_updated_timestamp + 1, change)
        with pytest.raises(HostsUpdatedInterrupt) as caught:
            state.check_host_updates()
        assert caught.value.skip_sync is skip
        state.check_host_updates()
    state.on_hosts_updated(0.5, update.added)
    state.check_host_updates()  # older than what was acted on


def test_run_returns_and_passes_arguments_on() -> None:
    @elastic.run
    def work(state: Any, a: int, b: int = 0) -> tuple[int, int, int]:
        """Run the training function under test."""
        return state.x, a, b

    assert work(elastic.ObjectState(x=1), 2, b=3) == (1, 2, 3)
    assert (work.__name__, work.__doc__) == ("work", "Run the training function under test.")
    assert elastic.notification_manager._listeners == []


def test_a_failure_restores_resets_syncs_and_calls_again() -> None:
    said: list[str] = []

    class Told(elastic.ObjectState):
        def restore(self) -> None:
            said.append("restore")
            super().restore()

        def reset(self) -> None:
            said.append("reset")

        def sync(self) -> None:
            said.append("sync")
            super().sync()

    state = Told(x=0)
    state.register_reset_callbacks([lambda: said.append("callback")])
    errors = [HorovodInternalError("a"), HostsUpdatedInterrupt(False), HostsUpdatedInterrupt(True)]

    @elastic.run
    def work(state: Any) -> int:
        state.x += 1
        said.append(f"call {state.x}")
        if errors:
            raise errors.pop(0)
        return state.x

    generation = session.generation()
    assert work(state) == 3
    assert session.generation() == generation + 3
    first, restored = ["sync", "call 1"], ["restore", "reset", "callback", "sync", "call 1"]
    assert said == [*first, *restored, "reset", "callback", "sync", "call 2", "reset", "callback", "call 3"]


def test_a_failure_during_the_recovery_is_recovered_from() -> None:
    troubles = ["first", "second"]

    def trouble() -> None:
        if troubles:
            raise HorovodInternalError(troubles.pop())

    state = elastic.ObjectState(x=0)
    state.register_reset_callbacks([trouble])
    calls: list[int] = []

    @elastic.run
    def work(state: Any) -> int:
        calls.append(1)
        if len(calls) == 1:
            raise HorovodInternalError("start")
        return len(calls)

    assert (work(state), troubles) == (2, [])


def test_error_in_a_future_of_torch_is_recovered_from() -> None:
    """The error in DDP's backward is a RuntimeError with the name and the text of ours."""
    errors = [RuntimeError("RankFailed: rank 1 failed"), RuntimeError("a bug")]

    @elastic.run
    def work(_state: Any) -> None:
        raise errors.pop(0)

    generation = session.generation()
    with pytest.raises(RuntimeError, match="a bug"):
        work(elastic.ObjectState(x=0))
    assert session.generation() == generation + 1


def test_unrecoverable_errors_are_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    def raising(error: BaseException) -> Any:
        @elastic.run
        def work(_: Any) -> None:
            raise error

        return work

    state = elastic.ObjectState(x=0)
    for error in (KeyError("mine"), KeyboardInterrupt(), SystemExit(3)):
        with pytest.raises(type(error)) as caught:
            raising(error)(state)
        assert caught.value.__notes__ == ["(elastic.run ended: this rank does not come back to it)"]
        state.check_host_updates()  # communication works on
    generation = session.generation()
    hopeless = [
        (RankDied("Rank 1 died"), "hvdrun --min-np"),
        (OutOfMemory("too large"), "there would be no more memory"),
    ]
    for failed, remedy in hopeless:
        with pytest.raises(type(failed), match=str(failed)) as known:
            raising(failed)(state)
        assert remedy in known.value.__notes__[0]
        hvd.shutdown()
        hvd.init()
    assert session.generation() == generation + len(hopeless), "nobody tried again"


SHAPES = "Mismatched ALLREDUCE tensor shapes: one rank sent [2], another one [3] (rank 0: [2]; rank 1: [3])"
OTHER_SHAPES = "Mismatched ALLREDUCE tensor shapes: one rank sent [2], another one [3] (rank 0: [3]; rank 1: [2])"
WAITING = "Ranks wait for each other: rank 0 for ALLREDUCE a; rank 1 for ALLREDUCE b. Call each on all ranks."
OTHER_ORDER = "Ranks wait for each other: rank 1 for ALLREDUCE b; rank 0 for ALLREDUCE a. Call each on all ranks."
MORE_RANKS = "Ranks wait for each other: ranks 0, 2 for ALLREDUCE a; rank 1 for ALLREDUCE b. Call each on all ranks."
OTHER_NAMES = "Ranks wait for each other: rank 0 for ALLREDUCE a; rank 1 for ALLREDUCE c. Call each on all ranks."


@pytest.mark.parametrize(
    ("first", "second", "attempts"),
    [
        (Mismatch(SHAPES), Mismatch(SHAPES), 2),
        (Mismatch(SHAPES), RankFailed(f"Rank 1 failed: Mismatch: {SHAPES}"), 2),
        (RankFailed(f"Rank 1 failed: Mismatch: {WAITING}"[:90]), Mismatch(OTHER_ORDER), 2),
        (Mismatch(WAITING), Mismatch(MORE_RANKS), 3),
        (Mismatch(SHAPES), Mismatch(OTHER_SHAPES), 3),
        (Mismatch(WAITING), Mismatch(OTHER_NAMES), 3),
        (Mismatch(SHAPES), Mismatch(WAITING), 3),
        (RankFailed(f"Rank 1 failed: {SHAPES}"), RankFailed(f"Rank 1 failed: {SHAPES}"), 3),
        (Mismatch(SHAPES), KeyError(f"Mismatch: {SHAPES}"), 2),
    ],
)
def test_a_repeated_mismatch_is_recognized(first: Exception, second: Exception, attempts: int) -> None:
    """Relies on one piece of text: "Mismatch: " before the message, also in an abort for it, which may be cut."""
    errors: list[Exception] = []

    def work(_: Any) -> str:
        errors.append(([first, second, None])[len(errors)])
        if errors[-1] is not None:
            raise errors[-1]
        return "done"

    train = elastic.run(work)
    if attempts == 3:
        assert train(elastic.ObjectState(x=0)) == "done"
    else:
        with pytest.raises(type(second)):
            train(elastic.ObjectState(x=0))
    assert len(errors) == attempts


def test_no_memory_is_both_kinds_of_error() -> None:
    error = OutOfMemory("rank 1 has no memory", 1)
    assert isinstance(error, MemoryError)
    assert isinstance(error, HorovodInternalError)
    assert (str(error), error.rank) == ("rank 1 has no memory", 1)


@pytest.mark.parametrize(
    ("told", "seconds"),
    [({}, 600), ({"HOROVOD_ELASTIC_TIMEOUT": "70"}, 70), ({"HVD_START_TIMEOUT": "7"}, 600)],
)
def test_timeouts_of_the_rendezvous(monkeypatch: pytest.MonkeyPatch, told: dict[str, str], seconds: float) -> None:
    """The start timeout applies first, then the elastic one; the program's environment is unchanged."""
    waited: list[float] = []
    options_of = lookup.engine_options

    def watched(env: Any = None) -> dict[str, str]:
        options = options_of(env)
        waited.append(float(options.get("start_timeout_s", 30)))
        return options

    hvd.shutdown()
    for name, value in told.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(lookup, "engine_options", watched)
    hvd.init()
    before = dict(os.environ)
    errors = [HorovodInternalError("once")]

    @elastic.run
    def work(_: Any) -> None:
        if errors:
            raise errors.pop()

    work(elastic.ObjectState(x=0))
    assert waited == [float(told.get("HVD_START_TIMEOUT", 30)), seconds]
    assert os.environ == before


@pytest.mark.parametrize("elastic_job", ["0", "1"])
def test_a_lone_rank_of_an_elastic_job_reduces_too(monkeypatch: pytest.MonkeyPatch, elastic_job: str) -> None:
    """Other ranks may join it later. The setting at init() decides."""
    hvd.shutdown()
    monkeypatch.setenv("HOROVOD_ELASTIC", elastic_job)
    hvd.init()
    monkeypatch.setenv("HOROVOD_ELASTIC", "1")
    model, plain, _ = model_and_optimizer()
    optimizer = hvd.DistributedOptimizer(plain, named_parameters=model.named_parameters())
    before = session.counters()["ops"]
    step(model, optimizer)
    assert (session.counters()["ops"] > before) == (elastic_job == "1")


def test_timeout_names_the_setting() -> None:
    def late() -> None:
        raise HvdTimeout("rank 1 did not come")

    def fails(_: Any) -> None:
        raise HorovodInternalError("once")

    with pytest.raises(HvdTimeout, match="rank 1 did not come") as caught:
        elastic.run_fn(fails, late)(elastic.ObjectState(x=0))
    assert "HVD_ELASTIC_TIMEOUT" in caught.value.__notes__[0]


def test_peer_that_has_exited_is_not_awaited(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranks 1 and 2 are local processes, rank 3 runs on another host, where rank 1's pid may belong to another process."""
    code = "import sys; sys.stdin.read()"
    ranks = [subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE) for _ in range(2)]
    here = membership._place()
    pids = [os.getpid(), *(rank.pid for rank in ranks)]
    found = [*((here, pid, False) for pid in pids), ("another", pids[1], False), ("", 1, True)]
    monkeypatch.setattr(membership.ops, "allgather_object", lambda *_, **__: found)
    monkeypatch.setattr(membership.session, "size", lambda: len(found))
    met: list[Any] = []
    monkeypatch.setattr(membership, "reset_communicator", met.append)
    mine = membership.PeerProcesses()
    try:
        assert mine.refresh(), "a rank wants to take another one's values"
        found.pop()
        assert not mine.refresh()
        mine.reset_communicator()
        (known,) = met
        assert (list(known.pidfds), known.patience_s) == ([1, 2], 600.0)
        mine.refresh()
        ranks[1].communicate(timeout=60)
        with pytest.raises(RankDied, match="rank 2 exited before the ranks could rendezvous again") as caught:
            mine.reset_communicator()
        assert (caught.value.rank, len(met)) == (2, 1)
    finally:
        mine.close()
        for rank in ranks:
            rank.kill()
            rank.communicate()
    for pidfd in known.pidfds.values():
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(pidfd)


def test_reset_limit_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []

    @elastic.run
    def work(_: Any) -> None:
        calls.append(1)
        raise HorovodInternalError("again")

    hvd.shutdown()
    monkeypatch.setenv("HVD_RESET_LIMIT", "3")
    hvd.init()
    with pytest.raises(HorovodInternalError, match=r"maximum number of resets \(3\)\. The last cause: Horovod.*again"):
        work(elastic.ObjectState(x=0))
    assert len(calls) == 4
    hvd.shutdown()
    monkeypatch.setenv("HVD_RESET_LIMIT", "often")
    with pytest.raises(ConfigError, match="HVD_RESET_LIMIT='often' cannot be used"):
        hvd.init()


def test_commits_are_counted_and_a_failure_restores_the_last() -> None:
    state = elastic.ObjectState(x=0)
    told: list[tuple[int, int]] = []
    state.register_commit_callbacks([lambda *numbers: told.append(numbers)])
    for number in (1, 2):
        state.x = number
        state.commit()
    state.x = 7
    state.recover()
    assert (state.x, state.commit_number, told) == (2, 2, [(0, 1), (1, 2)])
    state.sync_from()
    assert (state.x, state.commit_number, state.root) == (2, 2, 0)


def test_step_of_all_ranks_is_kept_and_a_failed_one_undone() -> None:
    model, plain, scheduler = model_and_optimizer()
    optimizer = hvd.DistributedOptimizer(plain, named_parameters=model.named_parameters())
    state = TorchState(model, optimizer, scheduler=scheduler, generator=torch.Generator(), batch=0)
    guard = elastic.StepGuard(state)

    def one() -> None:
        torch.rand(3, generator=state.generator)
        model(torch.ones(4, 3)).sum().backward()
        with guard:
            optimizer.step()
            scheduler.step()
            state.batch += 1
        optimizer.zero_grad()

    one()
    state.commit()
    one()
    one()
    kept, numbers = copied(model, optimizer), torch.rand(3, generator=state.generator)
    assert state.commit_number == 4
    model(torch.ones(4, 3)).sum().backward()
    state.batch = 9
    session.shutdown()
    hvd.init()
    state.recover()
    assert (state.batch, state.commit_number, scheduler.last_epoch) == (3, 4, 3)
    assert all(torch.equal(a, b) for a, b in zip(kept, copied(model, optimizer), strict=True))
    assert torch.equal(torch.rand(3, generator=state.generator), numbers)
    assert [p.grad for p in model.parameters()] == [None, None]

    def half() -> None:
        with guard:
            optimizer.step()
            raise HorovodInternalError("in the step")

    with pytest.raises(HorovodInternalError, match="in the step"):
        half()
    assert state.commit_number == 2, "half a step is none: what is whole is the commit"
    state.recover()
    assert (state.batch, state.commit_number) == (1, 2)
    state.sync_from()
    assert state.commit_number == 2


def test_buffers_are_restored_to_the_last_step() -> None:
    model = torch.nn.BatchNorm1d(2)
    state = TorchState(model, epoch=0)
    with elastic.StepGuard(state):
        model(torch.rand(4, 2))
    kept = {name: buffer.clone() for name, buffer in model.named_buffers()}
    model(torch.rand(4, 2))
    state.recover()
    assert all(torch.equal(buffer, kept[name]) for name, buffer in model.named_buffers())
    assert int(model.num_batches_tracked) == 1


def test_values_of_a_new_process_are_never_synced(monkeypatch: pytest.MonkeyPatch) -> None:
    state = elastic.ObjectState(x=1)
    state.sync_from(0, fresh=[0])  # a job's beginning: all are new
    numbers = [(0, "a"), (5, "b"), (7, "c"), (7, "d")]
    monkeypatch.setattr(states.ops, "allgather_object", lambda *_, **__: numbers)
    with pytest.raises(StateLost, match=r"Rank 0, whose .* is new in the job .* is none of \[0, 3\]"):
        state.sync_from(0, fresh=[3, 0])
    asked: list[int] = []
    monkeypatch.setattr(states.ops, "broadcast_object", lambda _, root, **__: asked.append(root) or {"x": 3})
    state.sync_from(fresh=[0])
    assert (asked, state.x, state.commit_number) == ([2], 3, 7)


def test_initial_state_is_loaded_once_and_failures_are_reported() -> None:
    state = elastic.ObjectState(x=1)

    def source() -> None:
        state.x, state._number, state._saved_number = 5, 30, 30

    state.register_source(source)
    state.sync_from()
    assert (state.x, state.commit_number) == (5, 30)
    state.x = 6
    state.sync_from()
    assert state.x == 6, "it has trained: nothing is loaded"
    other = elastic.ObjectState(x=1)
    other.register_source(lambda: 1 / 0)
    with pytest.raises(StateLost, match=r"Rank 0 could not load .*: ZeroDivisionError: division by zero"):
        other.sync_from()
