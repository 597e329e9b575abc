"""The agents of a job as the launcher holds them: started, heard, and ended.

Words.
  agent   the process that holds one host's ranks (agent.py); the end of its stdin ends them
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import time
from collections.abc import Iterator, Sequence
from typing import Any

import hvd_kernel
from hvd_kernel.launch import remote
from hvd_kernel.launch.hosts import Host, is_local
from hvd_kernel.launch.wire import Frame, Kind, Reader

_CHUNK = 1 << 16
_SAID = 4096  # bytes of ssh's and the agent's own words that are kept for messages
_END_S = 5.0


class Agent:
    """One host's."""

    def __init__(self, host: Host, port: int | None, identity: str | None) -> None:
        self.host = host
        self.remote = not is_local(host.name)
        self.command = remote.agent_command(host.name, local=not self.remote, port=port, identity=identity)
        self.hello: dict[str, Any] = {}
        self.said = ""
        self.gone = False
        self._process = subprocess.Popen(  # noqa: S603 - our own interpreter, or ssh
            self.command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,  # a terminal's Ctrl-C is for the launcher
        )
        assert self._process.stdout is not None
        assert self._process.stderr is not None
        self.frames = self._process.stdout.fileno()
        self.words = self._process.stderr.fileno()
        self._reader = Reader(expects_magic=True)
        self._mute = False

    @property
    def status(self) -> int:
        """Its exit status, when it has none it is waited for."""
        return self._process.wait()

    def send(self, frame: Frame) -> None:
        """Tell it something; it may be gone, which its own pipes will say."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(frame.pack())
            self._process.stdin.flush()
        except (BrokenPipeError, ValueError):
            return

    def read(self) -> list[Frame]:
        """Return the frames that have come; notes its end."""
        data = os.read(self.frames, _CHUNK)
        self.gone = not data
        return self._reader.feed(data) if data else []

    def listen(self) -> None:
        """Keep the end of what it or ssh says itself."""
        data = os.read(self.words, _CHUNK)
        self._mute = not data
        self.said = (self.said + data.decode(errors="replace"))[-_SAID:]

    def descriptors(self) -> list[int]:
        """Return what to wait on."""
        return [fd for fd, dead in ((self.frames, self.gone), (self.words, self._mute)) if not dead]

    def end(self) -> None:
        """Close its stdin, by which it ends with all that it holds; wait for that."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.close()
        except BrokenPipeError:
            self._mute = True  # it is gone already
        try:
            self._process.wait(_END_S if self.hello else 0.0)  # who never spoke holds nothing
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        for pipe in (self._process.stdout, self._process.stderr):
            assert pipe is not None
            pipe.close()


class Crew:
    """All agents of a job. Whoever makes one ends it."""

    def __init__(self) -> None:
        self.agents: list[Agent] = []

    def start(self, hosts: Sequence[Host], port: int | None, identity: str | None, seconds: float) -> None:
        """Start an agent on every host and wait until each has said hello.

        Raises
        ------
        ClusterError
            Naming the host that cannot be used, and why.
        """
        for host in hosts:
            self.agents.append(Agent(host, port, identity))
        deadline = time.monotonic() + seconds
        while any(not agent.hello for agent in self.agents):
            for agent, frame in self.heard(deadline - time.monotonic()):
                if frame is None:
                    raise self._unreachable(agent)
                agent.hello = json.loads(frame.payload)
            late = next((agent for agent in self.agents if not agent.hello), None)
            if late is not None and time.monotonic() > deadline:
                raise remote.silent(late.host.name, seconds, late.said)
        for agent in self.agents:
            if agent.hello["version"] != hvd_kernel.__version__:
                raise remote.other_version(agent.host.name, agent.hello["version"], hvd_kernel.__version__)

    def _unreachable(self, agent: Agent) -> Exception:
        while agent.words in agent.descriptors():
            agent.listen()
        return remote.unreachable(agent.host.name, agent.command, agent.status, agent.said)

    def heard(self, seconds: float, also: int = -1) -> Iterator[tuple[Agent, Frame | None]]:
        """Wait, and give what agents say; None is an agent's end. ``also``: a descriptor that may end the wait."""
        poll = select.poll()
        whose: dict[int, Agent] = {}
        for agent in self.agents:
            for fd in agent.descriptors():
                whose[fd] = agent
                poll.register(fd, select.POLLIN)
        if also >= 0:
            poll.register(also, select.POLLIN)
        for fd, _ in poll.poll(max(0.0, seconds) * 1000 + 1):
            if fd in whose:
                yield from self._heard(whose[fd], fd)

    def _heard(self, agent: Agent, fd: int) -> Iterator[tuple[Agent, Frame | None]]:
        if fd == agent.words:
            agent.listen()
            return
        yield from ((agent, frame) for frame in agent.read())
        if agent.gone:
            yield agent, None

    def stop(self, grace: float) -> None:
        """Have every rank that still runs ended: SIGTERM, then SIGKILL after ``grace`` seconds."""
        for agent in self.agents:
            agent.send(Frame(Kind.STOP, payload=f"{grace:g}".encode()))

    def end(self) -> None:
        """Leave nothing."""
        for agent in self.agents:
            agent.end()
