"""Functions of horovod.runner and horovod.common that programs call: hosts, settings, commands, and the launchers."""

from __future__ import annotations

import argparse
import importlib
import io
import os
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hvdtest.cluster import living, until

from hvd_kernel import compat
from hvd_kernel.errors import UsageError

PYTHON = f"{sys.executable} -c"


@pytest.fixture(autouse=True)
def installed() -> Iterator[None]:
    compat.install()
    yield
    compat.uninstall()


def use(name: str) -> Any:
    return importlib.import_module(f"horovod.{name}")


def test_hosts_and_assignment_of_ranks(tmp_path: Path) -> None:
    from horovod.runner.common.util.hosts import (
        INVALID_SLOT_INFO,
        HostInfo,
        SlotInfo,
        get_host_assignments,
        parse_host_files,
        parse_hosts,
        parse_hosts_and_slots,
    )

    hosts = parse_hosts("a:2,b:3")
    assert hosts == [HostInfo("a", 2), HostInfo("b", 3)]
    assert HostInfo.from_string("c:4") == HostInfo("c", 4)
    assert parse_hosts_and_slots("a:2,b:3") == (["a", "b"], {"a": 2, "b": 3})
    (tmp_path / "hosts").write_text("a slots=2\nb slots=3\n")
    assert parse_host_files(str(tmp_path / "hosts")) == "a:2,b:3"
    assert get_host_assignments(hosts, 1) == [
        SlotInfo("a", rank=0, local_rank=0, cross_rank=0, size=5, local_size=2, cross_size=2),
        SlotInfo("a", rank=1, local_rank=1, cross_rank=0, size=5, local_size=2, cross_size=2),
        SlotInfo("b", rank=2, local_rank=0, cross_rank=1, size=5, local_size=3, cross_size=2),
        SlotInfo("b", rank=3, local_rank=1, cross_rank=1, size=5, local_size=3, cross_size=2),
        SlotInfo("b", rank=4, local_rank=2, cross_rank=0, size=5, local_size=3, cross_size=1),
    ]
    assert [slot.hostname for slot in get_host_assignments(hosts, 1, 3)] == ["a", "a", "b"]
    with pytest.raises(ValueError, match=r"Requested more processes \(6\) than there are available slots \(5\)"):
        get_host_assignments(hosts, 6)
    assert get_host_assignments(hosts, 5)[4].to_response_string() == "4,5,2,3,0,1"
    assert INVALID_SLOT_INFO.rank == -1


def test_a_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    from horovod.runner.common.util import timeout

    now = [100.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    deadline = timeout.Timeout(30, "Timed out waiting for {activity}.")
    assert (deadline.remaining(), deadline.timed_out()) == (30.0, False)
    deadline.check_time_out_for("hosts")
    now[0] = 131.0
    assert (deadline.remaining(), deadline.timed_out()) == (0.0, True)
    with pytest.raises(timeout.TimeoutException, match=r"^Timed out waiting for hosts\. Timeout after 30 seconds\.$"):
        deadline.check_time_out_for("hosts")


def test_secrets_and_objects_as_text() -> None:
    from horovod.runner.common.util import codec, secret

    key = secret.make_secret_key()
    assert len(key) == secret.SECRET_LENGTH == 32
    digest = secret.compute_digest(key, b"message")
    assert len(digest) == secret.DIGEST_LENGTH
    assert [secret.check_digest(key, text, digest) for text in (b"message", b"massage")] == [True, False]
    assert codec.loads_base64(codec.dumps_base64({"a": [1]})) == {"a": [1]}
    assert isinstance(codec.dumps_base64(1, to_ascii=False), bytes)


def test_settings_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    from horovod.runner.common.util import env
    from horovod.runner.util import lsf

    for name in ("HOROVOD_RANK", "HOROVOD_SIZE", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "LSB_JOBID"):
        monkeypatch.delenv(name, raising=False)
    assert env.get_env_rank_and_size() == (0, 1)
    monkeypatch.setenv("HOROVOD_RANK", "3")
    with pytest.raises(RuntimeError, match="only one of HOROVOD_RANK and HOROVOD_SIZE"):
        env.get_env_rank_and_size()
    monkeypatch.setenv("HOROVOD_SIZE", "4")
    assert env.get_env_rank_and_size() == (3, 4)
    assert [env.is_exportable(name) for name in ("PATH", "BASH_FUNC_x", "CUDA_VISIBLE_DEVICES")] == [True, False, False]
    assert not lsf.LSFUtils.using_lsf()
    monkeypatch.setenv("LSB_JOBID", "7")
    monkeypatch.setenv("LSB_MCPU_HOSTS", "n2 4 n1 2")
    assert lsf.LSFUtils.using_lsf()
    assert (lsf.LSFUtils.get_compute_hosts(), lsf.LSFUtils.get_num_processes()) == (["n1", "n2"], 6)


def test_commands_for_other_hosts(monkeypatch: pytest.MonkeyPatch) -> None:
    from horovod.runner.util import remote

    monkeypatch.delenv("OMPI_MCA_plm_rsh_agent", raising=False)
    told = remote.get_remote_command("true", "far", port=2222, identity_file="/key", timeout_s=7)
    assert told == f"{remote.SSH_COMMAND_PREFIX} far -p 2222 -i /key -o ConnectTimeout=7 true"
    monkeypatch.setenv("OMPI_MCA_plm_rsh_agent", "/etc/mpi/kubexec.sh")
    assert remote.get_remote_command("true", "far") == "/etc/mpi/kubexec.sh far true"


def test_addresses_of_this_host() -> None:
    from horovod.runner.common.util.host_hash import host_hash
    from horovod.runner.util import network

    assert "127.0.0.1" in network.get_local_host_addresses()
    assert "lo" in network.get_local_intfs()
    assert network.get_local_intfs("none-such") == set()
    assert network.filter_local_addresses(["localhost", "none.invalid"]) == ["none.invalid"]
    assert network.get_driver_ip(["lo"]) == "127.0.0.1"
    with pytest.raises(RuntimeError, match="The interface none-such has no IPv4 address; this host has lo"):
        network.get_driver_ip(["none-such"])
    import socket

    server, port = network.find_port(socket.create_server)
    with server:
        assert server.getsockname()[1] == port > 0
    assert host_hash() == host_hash() != host_hash("salt")


def test_threads_and_kept_results() -> None:
    from horovod.runner.util import cache, threads

    assert threads.execute_function_multithreaded(lambda a, b: a + b, [[1, 2], [3, 4]]) == {0: 3, 1: 7}
    heard, event, stop = threading.Event(), threading.Event(), threading.Event()
    waiting = threads.on_event(event, heard.set, stop=stop, check_stop_interval_s=0.01)
    event.set()
    waiting.join()
    assert heard.is_set()
    heard.clear()
    stop.set()
    threads.on_event(threading.Event(), heard.set, stop=stop, check_stop_interval_s=0.01).join()
    assert not heard.is_set()
    with pytest.raises(ValueError, match="args must be a tuple"):
        threads.in_thread(print, ["a"])
    calls: list[int] = []

    @cache.use_cache()
    def doubled(number: int) -> int:
        calls.append(number)
        return 2 * number

    kept = cache.Cache("/nowhere", 60, "hash")
    assert [doubled(2, fn_cache=kept), doubled(2, fn_cache=kept), doubled(3, fn_cache=kept), doubled(2)] == [4, 4, 6, 4]
    assert calls == [2, 3, 2]


def test_a_command_of_the_shell() -> None:
    from horovod.runner.common.util import safe_shell_exec, tiny_shell_exec

    out, err = io.StringIO(), io.StringIO()
    told = "printf 'a\\rb\\nc'; printf '\\377' >&2; exit 3"
    assert safe_shell_exec.execute(told, stdout=out, stderr=err, index=1) == 3
    assert out.getvalue() == "[1]<stdout>:a\r[1]<stdout>:b\n[1]<stdout>:c"
    assert err.getvalue() == "[1]<stderr>:\ufffd"
    assert safe_shell_exec.execute("kill -9 $$", stdout=out) == 137
    assert tiny_shell_exec.execute("echo $A; echo b >&2; exit 2", {"A": "a"}) == ("a\nb\n", 2)


def test_event_ends_a_command_and_its_children() -> None:
    from horovod.runner.common.util import safe_shell_exec

    event = threading.Event()

    class Heard(io.StringIO):
        def write(self, text: str) -> int:
            event.set()
            return super().write(text)

    said = Heard()
    assert safe_shell_exec.execute("sleep 1000 & echo $!; wait", stdout=said, events=[event]) == 143
    sleeper = {int(said.getvalue())}
    until(lambda: not living(sleeper), "what it started has ended: it was killed, and takes its turn for that")


def test_flags_become_variables_and_back() -> None:
    from horovod.runner.common.util import config_parser

    args = argparse.Namespace(use_gloo=None, use_mpi=None, cache_capacity=7, autotune=None)
    config = {
        "controller": "gloo",
        "params": {"fusion_threshold_mb": 32, "cycle_time_ms": 2.5, "cache_capacity": 9, "torus_allreduce": False},
        "autotune": {"enabled": True, "warmup_samples": 4},
        "stall_check": {"enabled": False},
        "logging": {"level": "INFO", "with_timestamp": True},
    }
    config_parser.set_args_from_config(args, config, {"cache_capacity"})
    config_parser.validate_config_args(args)
    assert args.use_gloo
    env = config_parser.set_env_from_args({"A": "a"}, args)
    assert env == {
        "A": "a",
        "HOROVOD_FUSION_THRESHOLD": str(32 << 20),
        "HOROVOD_CYCLE_TIME": "2.5",
        "HOROVOD_CACHE_CAPACITY": "7",
        "HOROVOD_TORUS_ALLREDUCE": "0",
        "HOROVOD_AUTOTUNE": "1",
        "HOROVOD_AUTOTUNE_WARMUP_SAMPLES": "4",
        "HOROVOD_STALL_CHECK_DISABLE": "1",
        "HOROVOD_LOG_LEVEL": "INFO",
        "HOROVOD_LOG_HIDE_TIME": "0",
    }
    back = {name: value for name, value in config_parser.args_of_env(env).items() if value is not None}
    assert back == {name: value for name, value in vars(args).items() if value is not None and name != "use_gloo"}
    with pytest.raises(ValueError, match="No such controller supported: rpc"):
        config_parser.set_args_from_config(argparse.Namespace(use_gloo=None, use_mpi=None), {"controller": "rpc"}, ())
    with pytest.raises(ValueError, match="cycle_time_ms=-1 must be >= 0"):
        config_parser.validate_config_args(argparse.Namespace(cycle_time_ms=-1))
    with pytest.raises(ValueError, match=r"autotune_gaussian_process_noise=2 must be in \[0, 1\]"):
        config_parser.validate_config_args(argparse.Namespace(autotune_gaussian_process_noise=2))


def test_hosts_that_a_script_or_a_program_names(tmp_path: Path) -> None:
    from horovod.runner.elastic.discovery import FixedHosts, HostDiscovery, HostDiscoveryScript
    from horovod.runner.elastic.settings import ElasticSettings

    script = tmp_path / "hosts.sh"
    script.write_text("#!/bin/sh\necho a\necho b:3\n")
    script.chmod(0o755)
    assert HostDiscoveryScript(str(script), 2).find_available_hosts_and_slots() == {"a": 2, "b": 3}
    with pytest.raises(RuntimeError, match=r"Failed to execute discovery script: false\. Exit code: 1"):
        HostDiscoveryScript("false", 2).find_available_hosts_and_slots()

    class Listed(HostDiscoveryScript):
        def _execute_discovery_script(self) -> str:
            return f"{self._discovery_script}\n\nd:4\n"

    assert Listed(discovery_script="c", slots=3).find_available_hosts_and_slots() == {"c": 3, "d": 4}
    fixed = FixedHosts({"a": 1})
    assert isinstance(fixed, HostDiscovery)
    fixed.set({"b": 2})
    assert fixed.find_available_hosts_and_slots() == {"b": 2}
    with pytest.warns(DeprecationWarning, match="min_np is deprecated"):
        settings = ElasticSettings(fixed, None, 4, 600, 3, min_np=2, num_proc=2)
    assert (settings.min_num_proc, settings.max_num_proc, settings.elastic, settings.num_proc) == (2, 4, True, 2)


def test_a_command_line_as_horovods_names(monkeypatch: pytest.MonkeyPatch) -> None:
    from horovod.runner import launch

    words = "-np 2 -H localhost:2 --fusion-threshold-mb 3 --no-stall-check --network-interfaces lo python train.py"
    monkeypatch.setattr(sys, "argv", ["horovodrun", *words.split()])
    args = launch.parse_args()
    assert (args.num_proc, args.hosts, args.command) == (2, "localhost:2", ["python", "train.py"])
    assert (args.fusion_threshold_mb, args.no_stall_check, args.cycle_time_ms, args.nics) == (3, True, None, {"lo"})
    assert (args.run_func, args.use_mpi, args.min_num_proc) == (None, False, None)
    words = "--min-np 2 --max-np 4 --host-discovery-script h.sh --reset-limit 0 --elastic-timeout 9 python train.py"
    monkeypatch.setattr(sys, "argv", ["horovodrun", *words.split()])
    args = launch.parse_args()
    assert (args.num_proc, args.min_num_proc, args.max_num_proc, args.host_discovery_script) == (2, 2, 4, "h.sh")
    assert (args.reset_limit, args.elastic_timeout, args.slots, args.cooldown_range) == (0, 9.0, None, None)
    assert [launch.is_gloo_used(), launch.is_gloo_used(use_mpi=True)] == [True, False]
    monkeypatch.setattr(sys, "argv", ["horovodrun", "-np", "none", "true"])
    with pytest.raises(UsageError, match="none"):
        launch.parse_args()
    called: list[str] = []
    told = [lambda name=name: called.append(name) for name in ("gloo", "mpi", "js")]
    launch.run_controller(False, told[0], True, told[1], False, told[2], 0)
    launch.run_controller(None, told[0], None, told[1], None, told[2], 0)
    assert called == ["mpi", "gloo"]


SAYS = ["-c", "import os; print(os.environ['HOROVOD_RANK'], os.environ['HOROVOD_SIZE'], os.environ.get('A'))"]


@pytest.mark.mp
def test_a_job_by_gloo_run_and_one_that_fails(capfd: pytest.CaptureFixture[str]) -> None:
    from horovod.runner.common.util.settings import Settings
    from horovod.runner.gloo_run import create_slot_env_vars, gloo_run

    settings = Settings("localhost:2", num_proc=2)
    gloo_run(settings, ["lo"], {"A": "a"}, "127.0.0.1", [sys.executable, *SAYS])
    assert sorted(capfd.readouterr().out.splitlines()) == ["[0]<stdout>:0 2 a", "[1]<stdout>:1 2 a"]
    with pytest.raises(RuntimeError, match="Process name: 0\nExit code: 4\n"):
        gloo_run(settings, None, {}, "", ["sh", "-c", 'test "$HOROVOD_RANK" = 1 || exit 4; sleep 1000'])
    slot = use("runner.common.util.hosts").get_host_assignments(use("runner.common.util.hosts").parse_hosts("h:2"), 2)[
        1
    ]
    assert create_slot_env_vars(slot) == {
        "HOROVOD_HOSTNAME": "h",
        "HOROVOD_RANK": "1",
        "HOROVOD_SIZE": "2",
        "HOROVOD_LOCAL_RANK": "1",
        "HOROVOD_LOCAL_SIZE": "2",
        "HOROVOD_CROSS_RANK": "0",
        "HOROVOD_CROSS_SIZE": "1",
    }


ELASTIC = "import os, horovod.torch as hvd; hvd.init(); print(hvd.rank(), hvd.size(), os.environ['HVD_GENERATION'])"


@pytest.mark.mp
@pytest.mark.nightly
def test_an_elastic_job_by_gloo_run_elastic_and_command_line(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from horovod.runner import launch
    from horovod.runner.elastic.discovery import FixedHosts
    from horovod.runner.elastic.settings import ElasticSettings
    from horovod.runner.gloo_run import gloo_run_elastic

    hosts = FixedHosts({"localhost": 1, "127.0.0.1": 1})
    settings = ElasticSettings(hosts, 1, 2, 60, None, num_proc=2)
    gloo_run_elastic(settings, {}, [sys.executable, "-c", ELASTIC], None)
    assert sorted(capfd.readouterr().out.splitlines()) == ["[0]<stdout>:0 2 1", "[1]<stdout>:1 2 1"]

    def place() -> tuple[int, int, str]:
        import horovod.torch as hvd

        hvd.init()
        return hvd.rank(), hvd.size(), os.environ["A"]

    assert gloo_run_elastic(settings, {"A": "a"}, place, None) == [(0, 2, "a")]
    capfd.readouterr()

    def variables() -> list[str]:
        return [os.environ[f"HOROVOD_{name}"] for name in ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE")]

    assert gloo_run_elastic(ElasticSettings(hosts, 2, 2, 60, None, num_proc=2), {}, variables, None) == [
        ["0", "2", "0", "1"],
        ["1", "2", "0", "1"],
    ]
    capfd.readouterr()
    with pytest.raises(RuntimeError, match="Exit code: 4\n"):
        gloo_run_elastic(settings, {}, ["sh", "-c", "exit 4"], None)
    capfd.readouterr()
    for where in (["-np", "2", "--min-np", "1"], ["--min-np", "2", "--host-discovery-script", "echo localhost:2"]):
        monkeypatch.setattr(sys, "argv", ["horovodrun", *where, sys.executable, "-c", ELASTIC])
        launch._run(launch.parse_args())
        assert sorted(capfd.readouterr().out.splitlines()) == ["[0]<stdout>:0 2 1", "[1]<stdout>:1 2 1"]


@pytest.mark.mp
@pytest.mark.nightly
def test_a_job_by_mpi_run_and_by_a_command_line(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from horovod.runner import launch, mpi_run
    from horovod.runner.common.util.settings import Settings

    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    assert [mpi_run.mpi_available(), mpi_run.is_open_mpi(), mpi_run.is_mpich()] == [True, True, False]
    mpi_run.mpi_run(Settings("localhost:2", num_proc=2), None, {"HVDTEST": "1"}, ["sh", "-c", "echo here"])
    assert sorted(capfd.readouterr().out.splitlines()) == ["[0]<stdout>:here", "[1]<stdout>:here"]
    monkeypatch.setattr(sys, "argv", ["horovodrun", "-np", "2", sys.executable, *SAYS])
    launch._run(launch.parse_args())
    assert sorted(capfd.readouterr().out.splitlines()) == ["[0]<stdout>:0 2 None", "[1]<stdout>:1 2 None"]
    monkeypatch.setattr(sys, "argv", ["horovodrun", "-np", "1", "sh", "-c", "exit 5"])
    with pytest.raises(SystemExit, match="5"):
        launch.run_commandline()


def test_common_util() -> None:
    from horovod.common import util

    assert util.get_extension_full_path("/a/b.py", "torch", "lib") == f"/a/torch/lib{util.get_ext_suffix()}"
    util.check_installed_version("pytorch", "0.1")
    chosen = util.get_average_backwards_compatibility_fun(use("common.basics").HorovodBasics)
    assert [chosen(None, None), chosen(1, None)] == [0, 1]
    with pytest.warns(DeprecationWarning, match="`average` has been replaced"):
        assert chosen(None, False) == 1
    with pytest.raises(ValueError, match="The op parameter supersedes average"):
        chosen(1, True)
    calls: list[int] = []
    cached = util._cache(calls.append)
    cached(1)
    cached(1)
    assert calls == [1]


@pytest.mark.parametrize("name", ["horovod.data", pytest.param("horovod.torch", marks=pytest.mark.nightly)])
def test_import_loads_no_further_modules(name: str) -> None:
    """The table of unsupported internals and the launcher's modules are imported on request."""
    code = (
        "import sys; from hvd_kernel import compat; compat.install(); __import__(sys.argv[1])\n"
        "print([name for name in sys.modules if name.startswith(('hvd_kernel.launch', 'hvd_kernel.compat.'))])"
    )
    from subprocess import run

    said = run([sys.executable, "-P", "-c", code, name], capture_output=True, text=True, check=True).stdout
    assert said.strip() == str([f"hvd_kernel.compat.{name}" for name in ("finder", "tree")])
