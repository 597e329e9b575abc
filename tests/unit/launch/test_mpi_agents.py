"""Agents started by MPI: accepted and refused connections, and the report about missing ones."""

from __future__ import annotations

import errno
import os
import re
import secrets
import socket
import subprocess
import sys
from collections.abc import Iterator
from types import SimpleNamespace

import pytest
from hvdtest.hvdrun import order

from hvd_kernel.errors import ClusterError
from hvd_kernel.launch import agents as launch_agents
from hvd_kernel.launch.agents import AgentListener, Agents, ConnectedAgent
from hvd_kernel.launch.launchers.mpi import Mpiexec
from hvd_kernel.launch.placement import Host
from hvd_kernel.processes.channel import authentication
from hvd_kernel.processes.channel.authentication import ADDRESS_VARIABLE, ProvenChannel
from hvd_kernel.processes.channel.control_channel import pack
from hvd_kernel.processes.channel.messages import ChannelClosed, Hello, Message, Output, RankExited, RankStarted

SECRET = "s3cret"
PATIENCE_S = 120.0
EVERYWHERE = pytest.mark.parametrize("addresses", [[], ["127.0.0.1"]], ids=["here", "tcp"])


def started(address: str, secret: str = SECRET, rank: int = 0) -> subprocess.Popen[str]:
    """The agent of a rank that shares its host with another one."""
    env = {"OMPI_COMM_WORLD_RANK": str(rank), "OMPI_COMM_WORLD_LOCAL_SIZE": "2", "PATH": "/usr/bin:/bin"}
    return subprocess.Popen(
        [sys.executable, "-P", "-m", "hvd_kernel.processes.rank_agent", "mpi"],
        env=env | {ADDRESS_VARIABLE: address, "HVD_SECRET_KEY": secret},
        stdin=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )


def received_until(agents: Agents, last: type[Message]) -> list[Message]:
    said: list[Message] = []
    agents.on_message = lambda _, message: said.append(message)
    assert agents.run_until(lambda: any(isinstance(message, last) for message in said), PATIENCE_S), said
    return said


@pytest.fixture
def agents() -> Iterator[Agents]:
    every = Agents()
    yield every
    every.end()


def mpiexec() -> Mpiexec:
    return Mpiexec(lambda _: None)


@EVERYWHERE
def test_rank_is_started_read_and_released(addresses: list[str], agents: Agents) -> None:
    with AgentListener(agents, SECRET, addresses) as listener:
        process = started(listener.address)
        (agent,) = listener.wait(mpiexec(), 1, PATIENCE_S)
    assert (agent.hello["rank"], agent.hello["beside"]) == (0, 2)
    assert agent.host == Host(agent.hello["name"] if addresses else "localhost", 1)
    command = ["sh", "-c", f"echo $OMPI_COMM_WORLD_RANK${ADDRESS_VARIABLE}$OMP_NUM_THREADS; exit 3"]
    agent.send(order(command, "/", 7, inherit_env=True, ranks_on_host=10**6, env={}))
    begin, *rest = received_until(agents, RankExited)
    assert isinstance(begin, RankStarted)
    assert (begin.rank, begin.pid > 0) == (7, True)
    assert rest == [Output(7, "stdout", b"01\n"), RankExited(7, 3)]
    assert process.poll() is None, "it stays until the launcher hangs up, so that mpiexec sees nothing end"
    agent.hang_up()
    assert process.wait(PATIENCE_S) == 0
    assert process.communicate()[1] == ""


@EVERYWHERE
def test_stranger_is_refused_without_delaying_ranks(addresses: list[str], agents: Agents) -> None:
    with AgentListener(agents, SECRET, addresses) as listener:
        family = socket.AF_INET if addresses else socket.AF_UNIX
        with socket.socket(family) as silent, socket.socket(family) as loud:
            for one in (silent, loud):
                one.connect(
                    ("127.0.0.1", int(listener.address.rpartition(":")[2]))
                    if addresses
                    else f"\0{listener.address[1:]}"
                )
            loud.sendall(b"\0" * 64 + pack(Hello({})))
            wrong = started(listener.address, "guessed")
            right = started(listener.address)
            (agent,) = listener.wait(mpiexec(), 1, PATIENCE_S)
            ended = os.pidfd_open(wrong.pid)
            agents.loop.add_reader(ended, lambda: agents.loop.remove_reader(ended))
            assert agents.run_until(lambda: wrong.poll() is not None, PATIENCE_S)
            os.close(ended)
            assert [one for one in agents.every if one.hello] == [agent]
            assert wrong.wait() == 1
            assert "the process that answers there does not have the secret of this run" in wrong.communicate()[1]
    agents.end()
    assert right.wait(PATIENCE_S) == 0


@pytest.mark.parametrize("reads", [True, False], ids=["ends", "resets"])
@pytest.mark.parametrize("family", [socket.AF_UNIX, socket.AF_INET], ids=["here", "tcp"])
def test_closed_connection_is_not_authenticated(family: socket.AddressFamily, reads: bool) -> None:
    with socket.socket(family) as impostor:
        impostor.bind(("127.0.0.1", 0) if family == socket.AF_INET else f"\0{secrets.token_hex()}")
        impostor.listen()
        name = impostor.getsockname()
        process = started(f"127.0.0.1:{name[1]}" if family == socket.AF_INET else f"@{name[1:].decode()}")
        connection, _ = impostor.accept()
        with connection:
            connection.sendall(b"\1" * authentication.LENGTH)
            unread = 0 if reads else socket.MSG_PEEK
            assert (
                len(connection.recv(2 * authentication.LENGTH, socket.MSG_WAITALL | unread))
                == 2 * authentication.LENGTH
            )
        assert process.wait(PATIENCE_S) == 1
    assert "the process that answers there does not have the secret of this run" in process.communicate()[1]


def test_rank_obeys_only_its_launcher() -> None:
    with socket.create_server(("127.0.0.1", 0)) as impostor:
        process = started(f"127.0.0.1:{impostor.getsockname()[1]}")
        connection, _ = impostor.accept()
        with connection:
            connection.sendall(b"\1" * authentication.LENGTH)
            assert len(connection.recv(2 * authentication.LENGTH, socket.MSG_WAITALL)) == 2 * authentication.LENGTH
            connection.sendall(b"\2" * authentication.LENGTH)
            assert process.wait(PATIENCE_S) == 1
            assert connection.recv(1) == b"", "not even a hello"
    assert "does not have the secret" in process.communicate()[1]


def unplugged(*_: object) -> bytes:
    """Return the result of a read from an unreachable host."""
    raise OSError(errno.EHOSTUNREACH, "No route to host")


@pytest.mark.parametrize("proven", [True, False])
def test_lost_host_counts_as_disconnected(proven: bool, monkeypatch: pytest.MonkeyPatch, agents: Agents) -> None:
    here, there = socket.socketpair()
    heard: list[Message] = []
    agents.on_message = lambda _, message: heard.append(message)
    with there:
        agent = ConnectedAgent(agents, here, SECRET)
        assert isinstance(agent.channel, ProvenChannel)
        agent.channel.proven = proven
        there.sendall(b"x")
        with monkeypatch.context() as patch:
            patch.setattr(os, "read", unplugged)
            assert agents.run_until(lambda: agent.gone, PATIENCE_S)
    assert heard == [ChannelClosed()]


def test_proofs_belong_to_a_role_and_a_conversation() -> None:
    nonces = authentication.nonce() + authentication.nonce()
    shown = authentication.proof(SECRET, authentication.AGENT, nonces)
    assert authentication.proves(shown, SECRET, authentication.AGENT, nonces)
    assert not authentication.proves(shown, SECRET, authentication.CONTROLLER, nonces), (
        "an agent's own words are no proof of the launcher"
    )
    assert not authentication.proves(shown, SECRET, authentication.AGENT, authentication.nonce() * 2)
    assert not authentication.proves(shown, "other", authentication.AGENT, nonces)
    assert not authentication.proves(b"", SECRET, authentication.AGENT, nonces)


def test_ranks_that_do_not_connect(agents: Agents) -> None:
    with subprocess.Popen(["sleep", "100"]) as silent, AgentListener(agents, SECRET, []) as listener:
        with pytest.raises(ClusterError, match=r"0 of 2 ranks within 0\.05 s: .*--start-timeout") as late:
            listener.wait(mpiexec(), 2, 0.05)
        silent.kill()
    assert re.search(rf"started on this host: .*\bsleep \({silent.pid}\), \w+", str(late.value))


def test_ranks_that_connect_during_a_pause_are_not_late(monkeypatch: pytest.MonkeyPatch, agents: Agents) -> None:
    """The deadline passes while a hello is in flight."""
    now, on_hello = [100.0], ConnectedAgent.on_hello

    def late_hello(agent: ConnectedAgent, hello: Hello) -> None:
        now[0] += 100
        on_hello(agent, hello)

    clock = SimpleNamespace(monotonic=lambda: now[0])
    monkeypatch.setattr(launch_agents, "time", clock)
    monkeypatch.setattr(ConnectedAgent, "on_hello", late_hello)
    with AgentListener(agents, SECRET, []) as listener:
        process = started(listener.address)
        (agent,) = listener.wait(mpiexec(), 1, 60)
    assert agent.hello["rank"] == 0
    agents.end()
    assert process.wait(PATIENCE_S) == 0


def test_unexpected_ranks_connect(agents: Agents) -> None:
    with AgentListener(agents, SECRET, []) as listener:
        process = started(listener.address, rank=3)
        with pytest.raises(
            ClusterError, match=r"did not start 1 rank, as -np says: leave -n and -np out of --mpi-args"
        ):
            listener.wait(mpiexec(), 1, PATIENCE_S)
    agents.end()
    assert process.wait(PATIENCE_S) == 0


def test_output_of_mpiexec_itself() -> None:
    shown: list[bytes] = []
    ours = Mpiexec(shown.append)
    ours.receive(b"a warning\n", shown=False)
    assert shown == []
    ours.up()
    ours.receive(b"mapped\n", shown=True)
    ours.receive(b"MPI_ABORT was invoked on rank 2 in communicator X\n  Errorcode: 9\n", shown=False)
    assert shown == [b"a warning\n", b"mapped\n"]
    assert ours.first_failure() == (2, 9)
    assert str(ours.start_error("1", 0, 2)).startswith(
        "mpiexec ended (1) when 0 of 2 ranks were up. It said:\na warning"
    )
    assert str(Mpiexec(shown.append).spurious_end_error()).endswith("none of which had failed. It said nothing.")
