"""``run``: its refusals with reasons, and which exception it raises when several ranks fail."""

from __future__ import annotations

import inspect
import os
import pickle
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest

import hvd_kernel
from hvd_kernel.errors import ClusterError, ConfigError, RankDied, RankFailed, RankStalled, UsageError
from hvd_kernel.launch.elastic.options import ElasticOptions
from hvd_kernel.launch.outcome import FailedRank, Outcome, is_consequence
from hvd_kernel.launch.placement import Host
from hvd_kernel.launch.run import task
from hvd_kernel.launch.run.api import parse_options, run
from hvd_kernel.launch.run.call import Answer, Task, pack_call
from hvd_kernel.launch.run.execution import elastic_values, values_of
from hvd_kernel.processes.cluster_spec import ClusterSpec
from hvd_kernel.processes.private_dir import CALL, write_private

HOROVODS = (
    "func args kwargs num_proc min_num_proc max_num_proc slots reset_limit cooldown_range hosts hostfile "
    "host_discovery_script start_timeout ssh_port ssh_identity_file disable_cache output_filename verbose use_gloo use_mpi "
    "mpi_args network_interface network_interfaces executable np min_np max_np"
)


def nothing() -> None:
    return None


def options(**given: object) -> dict[str, object]:
    defaults = {name: p.default for name, p in inspect.signature(run).parameters.items()}
    return defaults | given


def test_signature_equals_horovods_and_is_loaded_lazily() -> None:
    parameters = inspect.signature(run).parameters.values()
    assert [p.name for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD] == HOROVODS.split()
    assert {p.name for p in parameters if p.kind is p.KEYWORD_ONLY} == {
        *("env", "reuse", "elastic_timeout", "max_restarts", "spares"),
        *("slot_failures", "host_failures", "hang_timeout"),
    }
    assert hvd_kernel.run is run
    with pytest.raises(AttributeError, match="no attribute 'walk'"):
        hvd_kernel.walk  # noqa: B018 - the look is the test


@pytest.mark.parametrize(
    ("given", "error", "text"),
    [
        (
            {"min_np": 0},
            ConfigError,
            "run(min_np=0) cannot be used: give a number of ranks, 1 or more, e.g. min_np=4",
        ),
        ({"min_np": 1, "min_num_proc": 1}, ConfigError, "run(min_num_proc=..., min_np=...): they say the same thing"),
        ({"min_np": 1, "max_np": 2, "num_proc": 3}, ConfigError, "max_np=2 is below np=3"),
        ({"min_np": 1, "use_mpi": True}, ConfigError, "run(min_np=..., use_mpi=...): jobs that MPI starts keep their"),
        ({"min_np": 1, "cooldown_range": (1,)}, ConfigError, "run(cooldown_range=(1,)) cannot be used: give two"),
        ({"min_np": 1, "cooldown_range": (0, 2)}, ConfigError, "the cooldown range 0 2 cannot be used"),
        (
            {"host_discovery_script": "x", "hosts": "a"},
            ConfigError,
            "a host discovery script and hosts both name hosts",
        ),
        ({"slots": 0}, ConfigError, "run(slots=0) cannot be used: give a number of slots, 1 or more, e.g. slots=4"),
        ({"slots": "4", "hosts": "a"}, ConfigError, "run(slots='4')"),
        ({"slots": 4, "hosts": "a", "hostfile": "f"}, ConfigError, "run(hosts=..., hostfile=...)"),
        ({"slots": 4, "hostfile": "/no/hosts"}, ConfigError, "the hostfile /no/hosts cannot be read"),
        ({"hosts": "a:1", "hostfile": "f"}, ConfigError, "run(hosts=..., hostfile=...)"),
        ({"use_gloo": True, "use_mpi": True}, ConfigError, "run(use_gloo=..., use_mpi=...)"),
        ({"use_gloo": True, "mpi_args": "-v"}, ConfigError, "use_gloo leaves out"),
        ({"network_interfaces": "a,b"}, ConfigError, "Name one."),
        ({"np": 0}, ConfigError, "run(np=0)"),
        ({"num_proc": "4"}, ConfigError, "run(np='4')"),
        ({"func": 3}, TypeError, "got 3"),
        ({"reuse": True}, UsageError, "this is not a notebook"),
        ({"reuse": True, "env": {"A": "b"}}, UsageError, "env is fixed when a rank starts"),
    ],
)
def test_unsupported_options_are_named(given: dict[str, object], error: type[Exception], text: str) -> None:
    with pytest.raises(error) as caught:
        run(**{"func": nothing, **given})
    assert text in str(caught.value)


def test_first_existing_interface_is_used() -> None:
    with pytest.warns(UserWarning, match=r"network_interfaces=\['no-such-0', 'lo'\]\): ranks use one of them, lo"):
        assert parse_options(options(np=1, network_interfaces=["no-such-0", "lo"])).job.network_interface == "lo"


def test_hosts_without_slots_get_the_slots_option(tmp_path: Path) -> None:
    """Horovod's run treats them like horovodrun --slots-per-host; ours refused the argument."""
    (tmp_path / "hosts").write_text("a\nb slots=2\n")
    for where in ({"hosts": "a,b:2"}, {"hostfile": str(tmp_path / "hosts")}):
        asked = parse_options(options(np=5, slots=3, **where))
        assert (asked.job.hosts, asked.job.hostfile) == ("a:3,b:2", None)
        assert asked.spec() == ClusterSpec(5, hosts="a:3,b:2"), "a notebook's ranks too"
    assert parse_options(options(np=2, hosts="a,b:2")).job.hosts == "a,b:2", "what is not said stays as it was written"


def test_slots_without_hosts_are_ignored_with_a_warning() -> None:
    with pytest.warns(UserWarning, match="slots") as told:
        asked = parse_options(options(np=2, slots=3))
    assert [str(each.message) for each in told] == [
        "run(slots=3) is left out: it is for hosts that are given without slots"
    ]
    assert (asked.job.hosts, asked.job.hostfile) == (None, None)


def test_how_the_number_of_ranks_may_change() -> None:
    asked = parse_options(
        options(num_proc=2, min_num_proc=2, max_num_proc=4, hosts="localhost:2,127.0.0.1:2", reset_limit=3)
    )
    hosts = (Host("localhost", 2), Host("127.0.0.1", 2))
    assert asked.elastic == ElasticOptions(2, 2, 4, hosts, reset_limit=3)
    assert parse_options(options(min_np=2)).elastic == ElasticOptions(2, 2, hosts=(Host("localhost", 2),))
    script = parse_options(
        options(np=2, host_discovery_script="h", slots=2, cooldown_range=[1, 9], elastic_timeout=5.0)
    )
    assert script.elastic == ElasticOptions(2, 2, script="h", slots=2, cooldown_s=(1, 9), timeout_s=5.0)
    with pytest.warns(UserWarning, match=r"run\(reset_limit\) is left out: for jobs whose size may change"):
        assert parse_options(options(np=2, reset_limit=3)).elastic is None


def test_arguments_of_the_launcher() -> None:
    job = parse_options(
        options(
            np=3,
            hosts="localhost:3",
            env={"A": "b"},
            start_timeout=7,
            ssh_port=22,
            ssh_identity_file="key",
            output_filename="out",
            network_interface="lo",
            executable="python9",
            disable_cache=True,
        )
    ).job
    assert (job.np, job.hosts, job.command, job.ssh_port, job.ssh_identity_file) == (
        3, "localhost:3", ["python9"], 22, "key",
    )  # fmt: skip
    assert (job.output_filename, job.network_interface, job.start_timeout_s) == ("out", "lo", 7)
    assert job.env == {"A": "b", "HVD_START_TIMEOUT": "7"}
    assert not job.use_mpi
    mpi = parse_options(options(num_proc=2, use_mpi=True, mpi_args="--tag-output -x A")).job
    assert (mpi.np, mpi.use_mpi, mpi.mpi_args) == (2, True, ("--tag-output", "-x", "A"))


def test_ranks_of_a_notebook_match_the_request() -> None:
    running = ClusterSpec(2, hosts="a:1,b:1", mpi_args=("-v",), start_timeout_s=5.0)
    assert parse_options(options(np=2)).spec(running) == running, "what is not said stays"
    assert parse_options(options(np=2, start_timeout=9)).spec(running) == running, "they have started"
    assert parse_options(options(np=3)).spec(running).n == 3
    assert parse_options(options(np=2, hostfile="f")).spec(running) == ClusterSpec(2, "", "f", ("-v",), 5.0)
    assert parse_options(options(np=2, start_timeout=9)).spec() == ClusterSpec(2, start_timeout_s=9)


def test_a_notebooks_ranks_on_an_engine_are_reused() -> None:
    running = ClusterSpec(2, on="spark")
    assert parse_options(options(np=2)).spec(running) == running
    assert parse_options(options(np=2, hosts="a:2")).spec(running) == ClusterSpec(2, "a:2"), (
        "these are not on the engine"
    )


def answers(*kinds: str) -> dict[int, Answer]:
    """Return one answer per rank: "ok", "late" and "early" raise on their own, "because" because of another."""
    times = {"late": 2.0, "early": 1.0, "because": 0.5}
    made = [
        Answer(value=pickle.dumps(rank))
        if kind == "ok"
        else Answer(kind=kind, message="m", trace="T\n", secondary=kind == "because", time=times[kind])
        for rank, kind in enumerate(kinds)
    ]
    return dict(enumerate(made))


def test_values_are_in_rank_order() -> None:
    assert values_of(dict(reversed(answers("ok", "ok", "ok").items())), 3, Outcome((0, 0, 0))) == [0, 1, 2]


def test_the_first_cause_is_raised() -> None:
    with pytest.raises(RankFailed) as caught:
        values_of(answers("ok", "late", "early", "because"), 4, Outcome((0, 1, 1, 1), 3))
    assert caught.value.rank == 2
    assert str(caught.value) == "rank 2 of 4 raised early: m\n\nT"
    assert type(caught.value.__cause__).__name__ == "early"


def test_rank_that_exited_precedes_the_errors_it_caused() -> None:
    ended = answers("because", "ok", "because")
    del ended[1]
    with pytest.raises(RankDied) as caught:
        values_of(ended, 3, Outcome((1, -9, 1), 1, ("last", "words")))
    assert caught.value.rank == 1
    assert str(caught.value) == (
        "rank 1 of 3 died before its function returned: killed (SIGKILL). Its last output:\n  last\n  words"
    )


def test_rank_that_exited_silently() -> None:
    with pytest.raises(RankDied, match="rank 1 of 2 ended with exit status 0 before its function returned"):
        values_of({0: answers("ok")[0]}, 2, Outcome((0, 0)))


def test_the_blamed_workers_exception_is_raised() -> None:
    given = dict(zip((5, 7, 9), answers("early", "because", "late").values(), strict=True))
    with pytest.raises(RankFailed) as caught:
        elastic_values(given, Outcome((1, 1), 1, status=1, workers=(7, 9), failed_worker=9))
    assert (caught.value.rank, type(caught.value.__cause__).__name__) == (1, "late")
    assert str(caught.value) == "rank 1 of 2 raised late: m\n\nT"


@pytest.mark.parametrize(
    ("error", "because"),
    [
        (RankFailed("rank 1 failed", 1), True),
        (RankDied("x", 1), True),
        (RankStalled("x"), True),
        (ValueError("x"), False),
    ],
)
def test_a_task_ends_with_the_kind_of_its_exception(*, tmp_path: Path, error: Exception, because: bool) -> None:
    def fails() -> None:
        raise error

    write_private(tmp_path / CALL, pack_call(fails, (), {}, ()))
    tmp_path.chmod(0o700)
    command = [sys.executable, "-P", "-m", task.__name__, str(tmp_path)]
    env = os.environ | {"HOROVOD_RANK": "0"}
    done = subprocess.run(command, check=False, env=env, capture_output=True, text=True, timeout=60)
    assert is_consequence(FailedRank(0, done.returncode, tuple(done.stderr.splitlines()))) == because
    [answer] = [pickle.loads(file.read_bytes()) for file in tmp_path.iterdir() if file.name != CALL]
    assert (answer.secondary, answer.trace) == (because, done.stderr)


def test_only_a_private_folder_is_unpickled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOROVOD_RANK", "0")
    (tmp_path / "call").write_bytes(b"never read")
    tmp_path.chmod(0o755)
    with pytest.raises(ClusterError, match="is not private to this user"):
        task.main(tmp_path)


def test_files_are_private_and_complete(tmp_path: Path) -> None:
    write_private(tmp_path / "x", b"content")
    assert stat.S_IMODE((tmp_path / "x").stat().st_mode) == 0o600
    assert [file.name for file in tmp_path.iterdir()] == ["x"]


class Stubborn(Exception):
    """An exception that cannot be rebuilt from its pickle."""

    def __init__(self, one: int, two: int) -> None:
        super().__init__(f"{one} and {two}")


def raises_stubborn() -> None:
    raise Stubborn(1, 2)


def raises_unpicklable() -> None:
    raise ValueError(threading.Lock())


def performed(func: object) -> Answer:
    task = Task(pack_call(func, (), {}, ()))  # type: ignore[arg-type]
    with pytest.raises(BaseException):  # noqa: B017, PT011 - any exception is passed on
        task.perform()
    assert task.answer is not None
    return task.answer


@pytest.mark.parametrize(("func", "kind"), [(raises_stubborn, "Stubborn"), (raises_unpicklable, "ValueError")])
def test_unpicklable_exception_keeps_name_and_text(func: object, kind: str) -> None:
    answer = performed(func)
    error = answer.exception()
    assert type(error).__name__ == kind
    assert str(error) == answer.message
    assert func.__name__ in answer.trace  # type: ignore[attr-defined]
    assert "run_call.py" not in answer.trace, "the trace begins with the user's function"


def test_exit_counts_as_return() -> None:
    task = Task(pack_call(lambda: sys.exit(0), (), {}, ()))
    task.perform()
    assert task.answer is not None
    assert task.answer.result() is None
    assert performed(lambda: sys.exit(3)).kind == "SystemExit"


def test_unsendable_values_are_reported() -> None:
    with pytest.raises(ClusterError, match="`nothing` with its arguments cannot be sent to the ranks"):
        pack_call(nothing, (threading.Lock(),), {}, ())
    answer = performed(lambda: (number for number in range(3)))
    assert "the function's result, a generator, cannot be sent back" in answer.message
