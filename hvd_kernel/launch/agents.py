"""The agents of a job as the launcher holds them: started, heard, and ended.

Words.
  agent   the process that holds one host's ranks (agent.py); the end of its stdin ends them
"""

from __future__ import annotations

import os
import select
import subprocess
import time
from collections.abc import Iterator, Sequence
from typing import Any

from hvd_kernel.errors import ClusterError
from hvd_kernel.launch.launchers import ssh
from hvd_kernel.launch.placement import Host, is_local
from hvd_kernel.processes.channel.control_channel import CHUNK, ControlChannel
from hvd_kernel.processes.channel.messages import ChannelClosed, Hello, Message, Stop
from hvd_kernel.version import __version__

_SAID = 4096  # bytes of ssh's and the agent's own words that are kept for messages
_END_S = 5.0  # that an agent may take to end; one that is killed leaves what its ranks have detached
_END_HERE_S = 20.0  # the same on this host, where no network can be the reason


class Agent:
    """What the launcher has of an agent, however that was started: the channel to it, and its hello."""

    def __init__(self, host: Host, channel: ControlChannel) -> None:
        self.host, self.channel = host, channel
        self.remote = not is_local(host.name)
        self.hello: dict[str, Any] = {}
        self.holds_ranks = True  # False: it holds mpiexec
        self.gone = False

    def descriptors(self) -> list[int]:
        """Return what to wait on."""
        return [] if self.gone else [self.channel.fileno()]

    def receive(self, _fd: int) -> list[Message]:
        """Return the messages that have come on one of these; notes its end."""
        found = self.channel.receive()
        self.gone = self.channel.closed
        return found

    def send(self, message: Message) -> None:
        """Send it a message; it may be gone, which ``receive`` will tell."""
        self.channel.send(message)

    def stop(self, grace: float) -> None:
        """Have all that it holds ended: SIGTERM, then SIGKILL after ``grace`` seconds."""
        self.send(Stop(grace))

    def release(self) -> None:
        """All ranks have ended: let it go, where it waits for that."""

    def lost(self) -> ClusterError | None:
        """Explain its end before that of its ranks; None: who started it knows better."""
        return None

    def end(self) -> None:
        """End it with all that it holds; wait for that."""
        raise NotImplementedError


class Started(Agent):
    """One that the launcher has started itself, here or through ssh."""

    def __init__(self, host: Host, port: int | None, identity: str | None, via: str) -> None:
        here = is_local(host.name)
        self.command = ssh.agent_command(host.name, local=here, port=port, identity=identity, via=via)
        self.said = ""
        self._process = subprocess.Popen(  # noqa: S603 - our own interpreter, or ssh
            self.command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,  # a terminal's Ctrl-C is for the launcher
        )
        stdin, stdout, stderr = self._process.stdin, self._process.stdout, self._process.stderr
        assert stdin is not None
        assert stdout is not None
        assert stderr is not None
        super().__init__(host, ControlChannel(stdout, stdin))
        self._stderr = stderr
        self._mute = False

    def receive(self, fd: int) -> list[Message]:
        """Return the messages that have come; keep the end of what it or ssh says itself."""
        if fd == self.channel.fileno():
            return super().receive(fd)
        self._listen()
        return []

    def _listen(self) -> None:
        data = os.read(self._stderr.fileno(), CHUNK)
        self._mute = not data
        self.said = (self.said + data.decode(errors="replace"))[-_SAID:]

    def descriptors(self) -> list[int]:
        """Return what to wait on."""
        return [*super().descriptors(), *([] if self._mute else [self._stderr.fileno()])]

    def unreachable(self) -> ClusterError:
        """Explain why it has not come up."""
        while not self._mute:
            self._listen()
        return ssh.unreachable(self.host.name, self.command, self._process.wait(), self.said)

    def lost(self) -> ClusterError | None:
        """Explain its end before that of its ranks."""
        return ssh.lost(self.host.name, self.said)

    def end(self) -> None:
        """Close its stdin, by which it ends with all that it holds; wait for that."""
        self.channel.end_sending()
        try:
            patience = _END_S if self.remote else _END_HERE_S
            deadline = time.monotonic() + (patience if self.hello else 0.0)  # who never spoke holds nothing
            self._hear_out(deadline)
            self._process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self.channel.close()
        self._stderr.close()

    def _hear_out(self, deadline: float) -> None:
        """Let it say its last words, which nobody wants: it cannot end while its pipe is full."""
        poll = select.poll()
        poll.register(self.channel.fileno(), select.POLLIN)
        while not self.gone and poll.poll(max(0.0, deadline - time.monotonic()) * 1000):
            super().receive(self.channel.fileno())


class Crew:
    """All agents of a job. Whoever makes one ends it."""

    def __init__(self) -> None:
        self.agents: list[Agent] = []

    def start(
        self, hosts: Sequence[Host], port: int | None, identity: str | None, seconds: float, via: str = ""
    ) -> None:
        """Start an agent on every host and wait until each has said hello; ``via``: srun instead of ssh.

        Raises
        ------
        ClusterError
            Naming the host that cannot be used, and why.
        """
        started = [Started(host, port, identity, via) for host in hosts]
        self.agents += started
        deadline = time.monotonic() + seconds
        while any(not agent.hello for agent in started):
            for agent, message in self.received(deadline - time.monotonic()):
                if isinstance(message, ChannelClosed):
                    raise next(one for one in started if one is agent).unreachable()
                if isinstance(message, Hello):
                    agent.hello = message.card
            late = next((agent for agent in started if not agent.hello), None)
            if late is not None and time.monotonic() > deadline:
                raise ssh.silent(late.host.name, seconds, late.said)
        check_versions(self.agents)

    def received(self, seconds: float, also: int = -1) -> Iterator[tuple[Agent, Message]]:
        """Wait, and give what agents send. ``also``: a descriptor that may end the wait."""
        poll = select.poll()
        whose: dict[int, Agent] = {}
        for agent in self.agents:
            for fd in agent.descriptors():
                whose[fd] = agent
                poll.register(fd, select.POLLIN)
        if also >= 0:
            poll.register(also, select.POLLIN)
        for fd, _ in poll.poll(max(0.0, seconds) * 1000 + 1):
            if fd in whose and fd in whose[fd].descriptors():  # it may have been ended meanwhile
                yield from ((whose[fd], message) for message in whose[fd].receive(fd))

    def stop(self, grace: float) -> None:
        """Have every rank that still runs ended: SIGTERM, then SIGKILL after ``grace`` seconds."""
        for agent in self.agents:
            if agent.holds_ranks:
                agent.stop(grace)

    def end(self) -> None:
        """Leave nothing."""
        for agent in self.agents:
            agent.end()


def check_versions(agents: Sequence[Agent]) -> None:
    """Refuse hosts with another version of this package.

    Raises
    ------
    ClusterError
        Naming one of them.
    """
    for agent in agents:
        if agent.hello["version"] != __version__:
            raise ssh.other_version(agent.host.name, agent.hello["version"], __version__)
