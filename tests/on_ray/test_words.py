"""Messages and refusals of ``hvd_kernel.ray`` without a Ray."""

from __future__ import annotations

import os
import pickle
import re
import stat
import subprocess
import sys
import threading
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest

from hvd_kernel.errors import ClusterError, RankDied, UsageError
from hvd_kernel.formatting.install_command import install_command
from hvd_kernel.launch.launchers.cluster_engine import Invitation
from hvd_kernel.ray import ElasticRayExecutor, RayExecutor, nodes, ray_logger, runner, static
from hvd_kernel.ray.adapter import BaseParams
from hvd_kernel.ray.nodes import node_ids

SETTINGS = RayExecutor.create_settings()


def test_without_ray_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "ray", None)
    with pytest.raises(UsageError, match=re.escape(f"hvd_kernel.ray needs Ray: {install_command('ray')}.")):
        RayExecutor(SETTINGS, num_workers=1).start()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"max_workers": 2}, runner.MAX_WITHOUT_MIN),
        ({"min_workers": 1, "num_workers": 1}, runner.ELASTIC_AND_STATIC),
        (
            {"num_workers": 1, "gpus_per_worker": 1},
            "gpus_per_worker is set, but use_gpu is False. use_gpu must be True if gpus_per_worker is set. ",
        ),
        (
            {"num_workers": 1, "gpus_per_worker": 0, "use_gpu": True},
            "gpus_per_worker must be >= 1: Got 0.",
        ),
    ],
)
def test_contradicting_arguments_are_refused(arguments: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        RayExecutor(SETTINGS, **arguments)  # type: ignore[arg-type]


@pytest.mark.parametrize("message", [runner.MAX_WITHOUT_MIN, runner.ELASTIC_AND_STATIC])
def test_sentences_of_an_error_are_separated_by_a_space(message: str) -> None:
    assert re.fullmatch(r"[^.]*[^.\s]\. [A-Z][^.]*[^.\s]", message)


def test_sentences_of_the_older_api_are_separated_by_a_space() -> None:
    settings = ElasticRayExecutor.create_settings(min_num_proc=2, max_num_proc=4)
    said = r"^gpus_per_slot is set, but use_gpu is False\. use_gpu must be True if gpus_per_slot is set\. $"
    with pytest.raises(ValueError, match=said):
        ElasticRayExecutor(settings, gpus_per_slot=1)
    ElasticRayExecutor(settings, override_discovery=False)
    assert (settings.elastic, settings.min_num_proc, settings.max_num_proc) == (True, 2, 4)


def test_older_names_of_sizes_are_accepted_with_a_warning() -> None:
    with pytest.warns(DeprecationWarning, match="min_np is deprecated, use min_num_proc instead"):
        settings = ElasticRayExecutor.create_settings(min_np=3)
    assert settings.min_num_proc == settings.num_proc == 3


def test_gpus_default_to_one_if_requested() -> None:
    assert [BaseParams(use_gpu=wanted).gpus_per_worker for wanted in (False, True)] == [0, 1]


def test_settings_keep_a_key_file_for_the_user_alone(tmp_path: Path) -> None:
    file = tmp_path / "key"
    settings = RayExecutor.create_settings(5, str(file), "secret", 7, "eth0")
    assert (settings.timeout_s, settings.placement_group_timeout_s, settings.nics) == (5, 7, "eth0")
    assert (file.read_text(), stat.S_IMODE(file.stat().st_mode)) == ("secret", 0o600)
    RayExecutor.create_settings(5, str(file), "other")
    assert file.read_text() == "secret"


class Nodes:
    """A fake of Ray's list of nodes."""

    def __init__(self, *nodes: tuple[str, str, bool, dict[str, float]]) -> None:
        names = ("NodeID", "NodeManagerAddress", "Alive", "Resources")
        self._nodes = [dict(zip(names, node, strict=True)) for node in nodes]

    def nodes(self) -> list[dict[str, object]]:
        return self._nodes


def test_discovery_finds_slots_of_living_nodes_by_id(monkeypatch: pytest.MonkeyPatch) -> None:
    found = Nodes(
        ("a", "10.0.0.1", True, {"CPU": 5.0, "GPU": 2.0}),
        ("b", "10.0.0.1", True, {"CPU": 1.0}),
        ("c", "10.0.0.3", False, {"CPU": 8.0}),
        ("d", "10.0.0.4", True, {"memory": 8.0}),
    )
    monkeypatch.setattr(nodes, "ray_api", lambda: found)
    assert nodes.slots(False, 2, 1) == {"a": 2}
    assert nodes.slots(False, 1, 1) == {"a": 5, "b": 1}
    assert nodes.slots(True, 1, 1) == {"a": 2}


def test_nodes_may_be_named_by_id_address_or_host() -> None:
    nodes = [
        {"NodeID": "a", "NodeManagerAddress": "10.0.0.1", "NodeManagerHostname": "one"},
        {"NodeID": "b", "NodeManagerAddress": "10.0.0.2", "NodeManagerHostname": "two"},
    ]
    assert node_ids({"b": 1, "10.0.0.1": 2, "gone": 3}, nodes) == {"b": 1, "a": 2}
    assert node_ids({"two": 1}, nodes) == {"b": 1}


TERMINATED = """
import os, signal, subprocess, sys
from hvd_kernel.ray.worker import end_below_at_sigterm
end_below_at_sigterm()
below = subprocess.Popen(["sleep", "1000"], start_new_session=True)
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})  # as if this thread were in C code: another one gets the signal
os.kill(os.getpid(), signal.SIGTERM)
below.wait()
"""


@pytest.mark.nightly
def test_sigterm_ends_processes_in_sessions_of_their_own() -> None:
    # Until all processes with its stdout have exited.
    done = subprocess.run([sys.executable, "-P", "-c", TERMINATED], stdout=subprocess.PIPE, timeout=60, check=False)
    assert done.returncode == 1


def test_log_without_callbacks_warns_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(os.environ, "HOROVOD_RANK", "0")
    monkeypatch.setattr(ray_logger._sink, "has_warned", False)
    with pytest.warns(UserWarning, match="`ray_logger.log` called but logging is not configured."):
        ray_logger.log({"loss": 1.0})
    ray_logger.log({"loss": 2.0})
    kept: list[object] = []
    queue = type("Queue", (), {"put": lambda _, value: kept.append(value)})()
    ray_logger.configure(queue)
    try:
        ray_logger.log({"loss": 3.0})
        monkeypatch.setitem(os.environ, "HOROVOD_RANK", "1")
        ray_logger.log({"loss": 4.0})
        ray_logger.log({"loss": 5.0}, chief_only=False)
    finally:
        ray_logger.configure(None)
    assert kept == [{"loss": 3.0}, {"loss": 5.0}]


def test_job_does_not_wait_for_ray_to_accept_logged_values() -> None:
    taken, batches = threading.Event(), list[list[int]]()

    def put_nowait_batch(values: list[int]) -> None:
        assert taken.wait(60), "the job waits"
        batches.append(values)

    with ray_logger.Forwarding(SimpleNamespace(put_nowait_batch=put_nowait_batch)) as logged:
        for number in range(100):
            logged.put(pickle.dumps(number))
        taken.set()
    assert [number for batch in batches for number in batch] == list(range(100))
    assert len(batches) <= 3, "what has come meanwhile goes together"


def test_losing_the_callbacks_queue_is_reported_at_the_end() -> None:
    is_lost = threading.Event()

    def put_nowait_batch(_values: list[int]) -> None:
        is_lost.set()
        raise OSError("the queue's node is gone")

    forwarding = ray_logger.Forwarding(SimpleNamespace(put_nowait_batch=put_nowait_batch))

    def job() -> None:
        with forwarding:
            forwarding.put(pickle.dumps(1))
            assert is_lost.wait(60)
            for number in range(100):
                forwarding.put(pickle.dumps(number))

    message = ray_logger.LOST_QUEUE.format(error="the queue's node is gone")
    with pytest.raises(ClusterError, match=f"^{re.escape(message)}$"):
        job()
    assert forwarding._values.empty()


def test_an_error_of_the_job_hides_that_of_the_queue() -> None:
    def put_nowait_batch(_values: list[int]) -> None:
        raise OSError("the queue's node is gone")

    def job() -> None:
        with ray_logger.Forwarding(SimpleNamespace(put_nowait_batch=put_nowait_batch)) as forwarding:
            forwarding.put(pickle.dumps(1))
            raise ValueError("bad shard")

    with pytest.raises(ValueError, match="bad shard"):
        job()


class ActorError(Exception):
    """An actor is lost."""


class TaskError(Exception):
    """A method of an actor raised."""

    def __init__(self) -> None:
        super().__init__()
        self.cause = ClusterError("no launcher")


class FakeRay:
    """Ray with one node, whose actors fail, end and run according to a list of events.

    ``fail``: the only actor raises; ``end``: it returns; a number: it runs for that many seconds. The engine is
    cancelled after the last event.
    """

    exceptions = SimpleNamespace(RayActorError=ActorError, RayTaskError=TaskError)

    def __init__(self, events: list[str | float]) -> None:
        self.events = events
        self.now = 0.0
        self.started = 0
        self.engine: nodes.Nodes | None = None
        self.util = SimpleNamespace(
            get_node_ip_address=lambda: "10.0.0.1",
            scheduling_strategies=SimpleNamespace(NodeAffinitySchedulingStrategy=lambda *_, **__: None),
        )

    def nodes(self) -> list[dict[str, object]]:
        return [{"NodeID": "a", "Alive": True}]

    def remote(self, _kind: type) -> SimpleNamespace:
        return SimpleNamespace(options=lambda **_: SimpleNamespace(remote=self._actor))

    def _actor(self) -> SimpleNamespace:
        self.started += 1
        return SimpleNamespace(hold=SimpleNamespace(remote=lambda *_: self.started))

    def wait(self, references: list[int], **_: object) -> tuple[list[int], list[int]]:
        if not self.events:
            assert self.engine is not None
            self.engine.cancel()
        elif isinstance(self.events[0], str):
            return references[-1:], references[:-1]
        else:
            self.now += self.events.pop(0)
        return [], references

    def get(self, _reference: int) -> None:
        if self.events.pop(0) == "fail":
            raise TaskError

    def kill(self, _actor: object) -> None:
        """End an actor."""


class DeadActor(ActorError):
    """An actor has died."""


class DualError(TaskError, ActorError):
    """The user's function raised the error of another actor."""


REASON = "The actor died unexpectedly. Worker exit type: SYSTEM_ERROR"
PENDING = "pending"


class FakeActors:
    """A fake of Ray's calls of actors: a reference is the call's outcome, a value, an error or ``PENDING``."""

    exceptions = FakeRay.exceptions

    def __init__(self, *outcomes: object) -> None:
        remote = [SimpleNamespace(remote=partial(self._call, outcome)) for outcome in outcomes]
        methods = ("answer", "communication", "execute", "pid", "reconnect", "set_queue")
        self.workers = [SimpleNamespace(**dict.fromkeys(methods, method)) for method in remote]
        self.ranks = static.RankActors(self.workers, "ab", (1, 2), ["one", "two"])

    def _call(self, outcome: object, *_: object, **__: object) -> tuple[object, object]:
        return outcome, object()

    def wait(self, references: list[tuple[object, object]], **_: object) -> tuple[list[object], list[object]]:
        """Return the references whose call has ended."""
        return [reference for reference in references if reference[0] is not PENDING], []

    def get(self, reference: tuple[object, object]) -> object:
        """Return the outcome of a call, or raise it."""
        if isinstance(reference[0], Exception):
            raise reference[0]
        return reference[0]


CALLS = {
    "run": lambda adapter: adapter.run(print),
    "execute": lambda adapter: adapter.execute(print),
    "run_remote": lambda adapter: adapter.run_remote(print),
    "execute_single": lambda adapter: adapter.execute_single(print),
    "reconnect": lambda adapter: adapter._ranks._reconnect(),
}


def started(ray: FakeActors, monkeypatch: pytest.MonkeyPatch) -> static.StaticAdapter:
    monkeypatch.setattr(static, "ray_api", lambda: ray)
    adapter = static.StaticAdapter(SETTINGS, num_workers=2)
    adapter._ranks = ray.ranks
    adapter._ranks.expect_failures()
    return adapter


@pytest.mark.parametrize("call", CALLS)
def test_every_call_names_the_rank_that_died(call: str, monkeypatch: pytest.MonkeyPatch) -> None:
    dead = DeadActor("The actor died unexpectedly.\n\tpid: 7\nWorker exit type: SYSTEM_ERROR\n")
    rank = 0 if call == "execute_single" else 1
    outcomes = [dead, PENDING] if rank == 0 else [PENDING, dead]
    adapter = started(FakeActors(*outcomes), monkeypatch)
    host = ["one", "two"][rank]
    with pytest.raises(RankDied) as caught:
        CALLS[call](adapter)
    assert str(caught.value) == static.DIED.format(rank=rank, np=2, host=host, reason=REASON)
    assert (caught.value.rank, caught.value.__cause__) == (rank, dead)


def test_error_of_another_actor_in_a_function_is_not_a_death(monkeypatch: pytest.MonkeyPatch) -> None:
    adapter = started(FakeActors(DualError(), None), monkeypatch)
    with pytest.raises(DualError):
        adapter.execute_single(print)


def test_remote_call_does_not_wait_for_busy_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    adapter = started(FakeActors(PENDING, PENDING), monkeypatch)
    assert [outcome for outcome, _ in adapter.run_remote(print)] == [PENDING, PENDING]


def test_actor_that_ends_at_the_start_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(static, "ray_api", FakeActors)
    adapter, dead = static.StaticAdapter(SETTINGS, num_workers=1), DeadActor("no libcuda.so")

    def create_workers() -> None:
        raise dead

    strategy = SimpleNamespace(create_workers=create_workers, workers=[], shutdown=lambda: None)
    monkeypatch.setattr(adapter, "_create_strategy", lambda: strategy)
    with pytest.raises(ClusterError, match=f"^{re.escape(static.NOT_UP.format(reason='no libcuda.so'))}$") as caught:
        adapter.start()
    assert caught.value.__cause__ is dead


def test_lost_queue_of_callbacks_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_logger, "ray_api", lambda: FakeRay([]))
    callbacks = ray_logger.Callbacks([print])

    def get() -> None:
        raise DeadActor("The node died.")

    callbacks.queue = SimpleNamespace(get=get)
    callbacks._call()
    assert isinstance(callbacks._error, ClusterError)
    assert str(callbacks._error) == ray_logger.LOST_QUEUE.format(error="The node died")


@pytest.mark.parametrize(
    ("events", "is_given_up"),
    [
        (["fail", "fail", "fail"], True),
        (["fail", "fail", nodes.SERVES_S, "fail", "fail"], False),
        (["fail", "fail", nodes.SERVES_S / 2, "fail"], True),
        (["fail", "fail", "end", "fail", "fail"], False),
        (["fail", "fail", nodes.SERVES_S, "fail", "fail", "fail"], True),
    ],
)
def test_only_failures_in_a_row_end_an_elastic_job(
    events: list[str | float], is_given_up: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    ray = FakeRay([*events])
    monkeypatch.setattr(nodes, "ray_api", lambda: ray)
    monkeypatch.setattr(nodes, "time", SimpleNamespace(monotonic=lambda: ray.now))
    hosts = SimpleNamespace(find_available_hosts_and_slots=lambda: {"a": 1})
    ray.engine = nodes.Nodes(hosts, most=None, cpus=1, gpus=0, cooldown_s=0.0)
    with pytest.raises(ClusterError, match="no launcher") if is_given_up else nullcontext():
        ray.engine.work(Invitation("here", "", {}))
    assert ray.started == 1 + sum(isinstance(event, str) for event in events) - is_given_up
