"""Questions of an agent to its ranks, over the real sockets: answers, strangers, and ranks that do not answer."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from hvd_kernel.processes import rank_channel
from hvd_kernel.processes.event_loop import EventLoop
from hvd_kernel.processes.rank_channel import MESSAGE_BYTES, RELAYED, VARIABLE, RankChannels

PATIENCE_S = 60.0


class Agent:
    """The loop of an agent, which has nothing else to do."""

    def __init__(self) -> None:
        self.told: list[tuple[int, dict[str, Any]]] = []
        self.relayed: list[tuple[int, bytes]] = []
        self._loop = EventLoop()
        self.channels = RankChannels(
            self._loop,
            report=lambda rank, told: self.told.append((rank, rank_channel.decode(told))),
            relay=lambda *said: self.relayed.append(said),
        )

    def until_told(self, count: int) -> list[tuple[int, dict[str, Any]]]:
        guard = self._loop.call_later(PATIENCE_S, self._give_up)
        while len(self.told) < count:
            self.turn()
        guard.cancel()
        return self.told

    def turn(self) -> None:
        self._loop.turn()

    def address(self, rank: int) -> str:
        return self.channels.variable(rank)[VARIABLE]

    def _give_up(self) -> None:
        raise AssertionError(self.told)


@pytest.fixture
def agent() -> Iterator[Agent]:
    agent = Agent()
    yield agent
    agent.channels.close()


def connect(address: str) -> socket.socket:
    reader, writer = os.pipe()
    try:
        channel = rank_channel.connect(address)
        rank_channel.register(channel, address, reader)
        return channel
    finally:
        os.close(reader)
        os.close(writer)


def test_rank_answers_a_request(agent: Agent) -> None:
    with connect(agent.address(3)) as rank:
        assert agent.until_told(1) == [(3, {"state": "connected"})]

        def answer() -> None:
            assert rank.recv(MESSAGE_BYTES)
            rank.send(rank_channel.encode({"state": "compute"}))

        thread = threading.Thread(target=answer)
        thread.start()
        agent.channels.query(3, None)
        agent.channels.query(3, 60.0)  # while it has not answered it is asked once
        assert agent.until_told(2)[1] == (3, {"state": "compute"})
        thread.join()


def test_agent_forwards_other_messages_both_ways(agent: Agent) -> None:
    agent.channels.forward(3, b"to nobody")
    with connect(agent.address(3)) as rank:
        agent.until_told(1)
        agent.channels.query(3, None)
        agent.channels.forward(3, b"from afar")
        assert rank.recv(MESSAGE_BYTES) == b"where?"
        assert rank.recv(MESSAGE_BYTES) == RELAYED + b"from afar"
        rank.send(RELAYED + b"to afar")
        rank.send(rank_channel.encode({"state": "compute"}))
        assert agent.until_told(2)[1] == (3, {"state": "compute"}), "the question is still open"
        assert agent.relayed == [(3, b"to afar")]


def test_last_output_of_a_rank_precedes_its_end(agent: Agent) -> None:
    with connect(agent.address(3)) as rank:
        agent.until_told(1)
        rank.send(RELAYED + b"one")
        rank.send(RELAYED + b"two")
    agent.channels.drain(3)
    assert agent.relayed == [(3, b"one"), (3, b"two")]
    agent.channels.drain(3)


def test_missing_and_exited_ranks_are_absent(agent: Agent) -> None:
    agent.channels.query(0, None)
    assert agent.told == [(0, {"state": "absent"})]
    with connect(agent.address(0)):
        agent.until_told(2)
        agent.channels.query(0, None)
    assert agent.until_told(3)[2] == (0, {"state": "absent"})


def test_child_of_a_rank_cannot_register_as_the_rank(agent: Agent) -> None:
    with connect(agent.address(0)) as rank:
        agent.until_told(1)
        with connect(agent.address(0)) as child:
            agent.turn()
            agent.turn()
            assert child.recv(MESSAGE_BYTES) == b"", "it is hung up on"
        agent.channels.query(0, None)
        assert rank.recv(MESSAGE_BYTES)
        rank.send(rank_channel.encode({"state": "compute"}))
        assert agent.until_told(2)[1] == (0, {"state": "compute"})


def test_stranger_is_refused(agent: Agent, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rank_channel, "peer_of", lambda _: (1, os.geteuid() + 1))
    with pytest.raises(ConnectionRefusedError):
        connect(agent.address(0))
    agent.turn()
    agent.channels.query(0, None)
    assert agent.told == [(0, {"state": "absent"})]


MUTE = """
import ctypes, os, signal, sys
from hvd_kernel.core import call_stack
from hvd_kernel.processes import rank_channel
from hvd_kernel.protocol.messages import STACK_SIGNAL
reader, writer = os.pipe2(os.O_NONBLOCK)
channel = rank_channel.connect(sys.argv[1])
call_stack.dump_stacks_at_signal(writer)
signal.pthread_sigmask(signal.SIG_BLOCK, [STACK_SIGNAL])
rank_channel.register(channel, sys.argv[1], reader)
every_signal = bytes(128)
def keeps_quiet():
    ctypes.PyDLL(None).ppoll(None, 0, None, every_signal)  # only here a signal finds it
while True:
    keeps_quiet()
"""


@pytest.fixture
def mute(agent: Agent) -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen([sys.executable, "-P", "-c", MUTE, agent.address(0)]) as process:
        try:
            agent.until_told(1)
            yield process
        finally:
            process.kill()


def test_unresponsive_rank_writes_its_stacks_at_a_signal(agent: Agent, mute: subprocess.Popen[bytes]) -> None:
    for count in (2, 3):
        agent.channels.query(0, 0.0)
        rank, told = agent.until_told(count)[-1]
        assert (rank, told["state"]) == (0, "silent")
        assert "in keeps_quiet" in told["stack"]
        assert "(ppoll+" in told["stack"].split("keeps_quiet")[1], "C functions stand below"
        assert told["stack"].endswith("end of stack\n")


def test_stopped_rank_is_reported_as_stopped(agent: Agent, mute: subprocess.Popen[bytes]) -> None:
    mute.send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, mute.pid, os.WSTOPPED | os.WNOWAIT)
    agent.channels.query(0, 0.0)
    assert agent.until_told(2)[1] == (0, {"state": "stopped"})


def test_quick_inspection_reports_stopped_ranks_without_requests(agent: Agent, mute: subprocess.Popen[bytes]) -> None:
    agent.channels.report_if_stopped(0)
    mute.send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, mute.pid, os.WSTOPPED | os.WNOWAIT)
    agent.channels.report_if_stopped(0)
    agent.channels.report_if_stopped(1)
    assert agent.told[1:] == [(0, {"state": "stopped"})]
