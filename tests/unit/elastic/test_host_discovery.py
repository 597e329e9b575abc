"""Host discovery of elastic jobs: parsing of answers, and objects that query Slurm, Kubernetes, a file or the user's code."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Sequence
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from hvd_kernel.errors import ConfigError
from hvd_kernel.launch.elastic.discovery import PolledHosts, parse_lines, parse_mapping
from hvd_kernel.launch.elastic.events import DiscoveryFailed, Event, HostsFound
from hvd_kernel.launch.elastic.schedulers import (
    HostsFile,
    KubernetesDns,
    KubernetesEndpoints,
    SlurmHosts,
    addresses,
    command_output,
    discovery_object,
    pods_of,
)
from hvd_kernel.launch.placement import Host
from hvd_kernel.processes.event_loop import EventLoop


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("", []),
        ("\n  \n", []),
        ("host-1\n", [("host-1", 2)]),
        ("host-1:4\nhost-2:1", [("host-1", 4), ("host-2", 1)]),
        ("z:1\na:1\nm\n", [("z", 1), ("a", 1), ("m", 2)]),
        ("a:1\n\nb:1\na:1\n", [("a", 1), ("b", 1)]),
        ("a:1\nb:1\na:3\n", [("a", 3), ("b", 1)]),
        ("  a:1  \r\n", [("a", 1)]),
        ("[fe80::1]:4\n[::1]\n", [("fe80::1", 4), ("::1", 2)]),
        ("joe@a:2", [("joe@a", 2)]),
        ("a:0\nb:2", [("b", 2)]),
    ],
)
def test_output_of_a_discovery_script(text: str, found: list[tuple[str, int]]) -> None:
    assert [(host.name, host.slots) for host in parse_lines(text, 2)] == found


@pytest.mark.parametrize(
    "line", ["a:b", "a:", "fe80::1:4", "a b", "-x:2", "a:-1", "a:1:2", "a:1,b:2", ":4", ":0", "a,b"]
)
def test_unparsable_line_is_named(line: str) -> None:
    with pytest.raises(ConfigError, match=r"^line 3 is not a host with its slots: ") as error:
        parse_lines(f"good:1\n\n{line}\n", None)
    assert repr(line) in str(error.value)


@pytest.mark.parametrize("answer", [None, ["a"], "a:1", {"a": "2"}, {"a": -1}, {1: 1}])
def test_invalid_answer_of_an_object(answer: object) -> None:
    with pytest.raises(ConfigError, match="must return"):
        parse_mapping(answer)


def test_the_order_of_an_objects_answer_counts() -> None:
    assert parse_mapping({"b": 1, "a": 2, "c": 0}) == (Host("b", 1), Host("a", 2))


# An object that is asked again and again.


def events_of(asked: object, count: int, **more: float) -> list[Event]:
    """Return the events made of an object's answers, as they arrive on a loop."""
    loop = EventLoop()
    found: list[Event] = []

    def take(event: Event) -> None:
        found.append(event)
        if len(found) == count:
            source.close()
            loop.stop()

    source = PolledHosts(asked, 0.0, loop, take, **more)  # type: ignore[arg-type]
    source.start()
    loop.run()
    loop.close()
    return found


class FakeDiscovery:
    """Answers one thing after the other; an exception is raised."""

    def __init__(self, *answers: object) -> None:
        self.answers = list(answers)

    def find_available_hosts_and_slots(self) -> object:
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


def test_object_is_queried_repeatedly() -> None:
    asked = FakeDiscovery({"a": 1}, ValueError("no answer today"), ["a"], ConfigError("nothing there."), {})
    assert events_of(asked, 5) == [
        HostsFound((Host("a", 1),)),
        DiscoveryFailed("ValueError: no answer today"),
        DiscoveryFailed("find_available_hosts_and_slots() must return hosts with their slots, not ['a']"),
        DiscoveryFailed("nothing there"),
        HostsFound(()),
    ]


def test_unresponsive_object_blocks_nothing() -> None:
    class FakeSlowDiscovery:
        def __init__(self) -> None:
            self.may_answer = threading.Event()
            self.questions = 0

        def find_available_hosts_and_slots(self) -> dict[str, int]:
            self.questions += 1
            self.may_answer.wait()
            return {"a": self.questions}

    asked, loop = FakeSlowDiscovery(), EventLoop()
    found: list[Event] = []

    def take(event: Event) -> None:
        found.append(event)
        asked.may_answer.set()
        if len(found) == 2:
            source.close()
            loop.stop()

    source = PolledHosts(asked, 0.0, loop, take, limit_s=0.01)
    source.start()
    loop.run()
    loop.close()
    assert found == [DiscoveryFailed("it has not answered within 0.01 s"), HostsFound((Host("a", 1),))]


def test_answer_after_the_end_is_dropped() -> None:
    may_answer = threading.Event()

    class FakeLateDiscovery:
        def find_available_hosts_and_slots(self) -> dict[str, int]:
            may_answer.wait()
            return {}

    loop = EventLoop()
    source = PolledHosts(FakeLateDiscovery(), 0.0, loop, lambda _: pytest.fail("it was told"))
    before = set(threading.enumerate())
    source.start()
    source.close()
    loop.close()
    may_answer.set()
    for thread in set(threading.enumerate()) - before:
        thread.join()


# A file.


def test_hosts_file_is_read_at_every_query(tmp_path: Path) -> None:
    file = tmp_path / "hosts"
    hosts = HostsFile(str(file), 3)
    with pytest.raises(ConfigError, match=r"the hosts file .*hosts cannot be read: "):
        hosts.find_available_hosts_and_slots()
    for text, found in [("a\nb:1\n", {"a": 3, "b": 1}), ("", {}), ("b:1\n", {"b": 1})]:
        file.write_text(text)
        assert hosts.find_available_hosts_and_slots() == found
    file.write_text("a:x\n")
    with pytest.raises(ConfigError, match=r"hosts: line 1 is not a host with its slots: 'a:x'"):
        hosts.find_available_hosts_and_slots()


# Slurm.

JOB = {
    "SLURM_JOB_ID": "42",
    "SLURM_JOB_NODELIST": "n[1-2]",
    "SLURM_JOB_NUM_NODES": "2",
    "SLURM_NTASKS": "8",
    "SLURM_TASKS_PER_NODE": "4(x2)",
    "SLURM_JOB_CPUS_PER_NODE": "4(x2)",
}


class FakeSlurm:
    """Fakes of scontrol and sinfo of an allocation whose nodes join and leave."""

    def __init__(self, nodes: str, **states: str) -> None:
        self.nodes, self.states = nodes, states
        self.asked: list[Sequence[str]] = []

    def __call__(self, command: Sequence[str]) -> str:
        self.asked.append(command)
        if command[0] == "scontrol":
            assert command[1:] == ["show", "job", "-o", "42"]
            return f"JobId=42 JobName=x ReqNodeList=(null) ExcNodeList=(null) NodeList={self.nodes} BatchHost=n1 NumNodes=2\n"
        assert command[:4] == ["sinfo", "--noheader", "--Node", "--format=%N %T"]
        return "".join(f"{name} {state}\n" for name, state in self.states.items())


@pytest.mark.parametrize(
    ("slurm", "slots", "found"),
    [
        (FakeSlurm("n[1-2]", n1="allocated", n2="mixed"), None, {"n1": 4, "n2": 4}),
        (FakeSlurm("n[1-2]", n1="allocated", n2="down*"), None, {"n1": 4}),
        (FakeSlurm("n[1-2]", n1="draining", n2="allocated*"), None, {}),
        (FakeSlurm("n2", n2="allocated"), None, {"n2": 4}),
        (FakeSlurm("n[1-3]", n1="allocated", n2="allocated", n3="allocated"), None, {"n1": 4, "n2": 4, "n3": 4}),
        (FakeSlurm("n[1-2]", n1="allocated", n2="allocated"), 1, {"n1": 1, "n2": 1}),
        (FakeSlurm("(null)"), None, {}),
    ],
)
def test_available_nodes_of_an_allocation(slurm: FakeSlurm, slots: int | None, found: dict[str, int]) -> None:
    assert SlurmHosts(slots, JOB, slurm).find_available_hosts_and_slots() == found


def test_slurm_discovery_needs_slurm() -> None:
    with pytest.raises(ConfigError, match="SLURM_JOB_ID is not set"):
        SlurmHosts(env={}).find_available_hosts_and_slots()


def test_failing_slurm_command_is_reported() -> None:
    with pytest.raises(ConfigError, match=r"^sh -c echo no such job >&2; exit 3: exit status 3: no such job\.$"):
        command_output(["sh", "-c", "echo no such job >&2; exit 3"])
    with pytest.raises(ConfigError, match="scontrol-that-is-not-there"):
        command_output(["scontrol-that-is-not-there"])


# Kubernetes.


def test_addresses_of_a_headless_service_in_their_order() -> None:
    fake_dns = ["10.0.0.10", "10.0.0.9", "fd00::1", "10.0.0.9"]
    found = KubernetesDns(
        "workers", 2, lambda name: fake_dns if name == "workers" else []
    ).find_available_hosts_and_slots()
    assert list(found.items()) == [("10.0.0.9", 2), ("10.0.0.10", 2), ("fd00::1", 2)]


def test_a_service_without_a_ready_pod_has_no_hosts() -> None:
    assert addresses("no-such-service.invalid") == []


def test_pods_are_named_if_they_have_names() -> None:
    ready = [{"ip": "10.0.0.2", "hostname": "w-10"}, {"ip": "10.0.0.3", "hostname": "w-9"}, {"ip": "10.0.0.4"}]
    endpoints = {
        "metadata": {"name": "w"},
        "subsets": [{"addresses": ready, "notReadyAddresses": [{"ip": "10.0.0.5"}]}],
    }
    assert list(pods_of(endpoints, 2).items()) == [("10.0.0.4", 2), ("w-9.w", 2), ("w-10.w", 2)]
    assert pods_of({"metadata": {"name": "w"}}, 2) == {}


@pytest.fixture
def fake_api_server() -> Iterator[str]:
    """An API server that knows one service and one token."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            is_known = self.path == "/api/v1/namespaces/lab/endpoints/w"
            is_allowed = self.headers["Authorization"] == "Bearer secret"
            self.send_response(200 if is_known and is_allowed else 403 if is_known else 404)
            self.end_headers()
            body = {"metadata": {"name": "w"}, "subsets": [{"addresses": [{"ip": "10.0.0.2", "hostname": "w-0"}]}]}
            self.wfile.write(json.dumps(body).encode())

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def account(folder: Path, token: str) -> Path:
    (folder / "token").write_text(f"{token}\n")
    (folder / "namespace").write_text("lab")
    return folder


def test_ready_pods_as_the_api_server_names_them(fake_api_server: str, tmp_path: Path) -> None:
    def asked(service: str = "w", token: str = "secret") -> dict[str, int]:
        return KubernetesEndpoints(
            service, 4, server=fake_api_server, account=account(tmp_path, token)
        ).find_available_hosts_and_slots()

    assert asked() == {"w-0.w": 4}
    with pytest.raises(ConfigError, match=r"namespace lab has no endpoints other\."):
        asked("other")
    with pytest.raises(ConfigError, match=r"check that this pod's service account may read endpoints"):
        asked(token="wrong")


def test_kubernetes_discovery_needs_a_service_account(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="this process is not in a pod with a service account"):
        KubernetesEndpoints("w", account=tmp_path).find_available_hosts_and_slots()


# What the flag names.


@pytest.mark.parametrize(
    ("script", "found"),
    [
        ("file:/tmp/hosts", HostsFile("/tmp/hosts", 2)),
        ("kubernetes:w", KubernetesEndpoints("w", 2)),
        ("kubernetes-dns:w.lab.svc", KubernetesDns("w.lab.svc", 2)),
        ("./hosts.sh", None),
        ("kubernetes.sh --all", None),
    ],
)
def test_sources_that_the_flag_names(script: str, found: object) -> None:
    assert discovery_object(script, 2) == found
    assert isinstance(discovery_object("slurm:", 2), SlurmHosts)


@pytest.mark.parametrize("script", ["file:", "kubernetes:", "kubernetes-dns:"])
def test_a_kind_without_a_name(script: str) -> None:
    with pytest.raises(ConfigError, match=f"write {script}NAME"):
        discovery_object(script, None)
