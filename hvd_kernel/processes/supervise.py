"""Process supervisor: holds child processes for a controller, to which it has a control channel, and ends with them.

    controller --pidfd, control channel--> supervisor --PDEATHSIG--> children

The base of the agent of a host (agent.py) and of the supervisor of a notebook's cluster (cluster/supervisor.py), which
differ in the messages that they handle. As "child subreaper" it inherits every orphan below it, so that at the end it
can kill all of them, whatever they forked. It watches the controller's process itself (pidfd) besides the channel,
whose end could be held up by any process that has it open.
"""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

from hvd_kernel.processes.channel import messages as m
from hvd_kernel.processes.channel.attachment import Controller
from hvd_kernel.processes.child_process import ChildProcess
from hvd_kernel.processes.event_loop import EventLoop, Timer
from hvd_kernel.processes.lifetime import kill_descendants
from hvd_kernel.processes.mps.daemon import PrivateDaemon
from hvd_kernel.processes.resources.limits import LOOK_S, Confinement


class ProcessSupervisor:
    """The loop, the children and the controller. All of it belongs to the thread that calls ``serve``."""

    def __init__(self, controller: Controller, folders: Iterable[Path] = ()) -> None:
        self.loop = EventLoop()
        self.folders = [*folders]  # to remove at the end
        self.controller: Controller | None = None
        self.handlers: dict[type[m.Message], Callable[[Any], None]] = {
            m.Stop: lambda stop: self.stop(stop.grace),
            m.ChannelClosed: lambda _: self.lose_controller(),
        }
        self.mps = PrivateDaemon(self.say)
        self._children: list[ChildProcess] = []
        self._limited: dict[int, tuple[Confinement, Callable[[str], None]]] = {}
        self._look: Timer | None = None
        self._deadline: Timer | None = None  # when what still runs is killed
        self.take_controller(controller)

    def serve(self) -> None:
        """Run until nothing is left to be done; then leave nothing: processes, last messages, folders."""
        try:
            self.loop.run()
        finally:
            self.close()

    def close(self) -> None:
        """End everything."""
        for child in self._children:  # the daemon waits for its clients
            child.signal(signal.SIGKILL)
        self.mps.close()
        kill_descendants()
        for folder in self.folders:
            shutil.rmtree(folder, ignore_errors=True)
        self.send_rest()
        if self.controller is not None:
            self.controller.channel.finish()

    # What else is done at these moments is for the subclasses to say.

    def lose_controller(self) -> None:
        """Do what has to be done when the controller is gone."""
        self.loop.stop()

    def terminate(self) -> None:
        """Ask the ranks to end."""

    def kill(self) -> None:
        """End the ranks."""

    def send_rest(self) -> None:
        """Send what killed children have left."""

    def on_progress(self) -> None:
        """Look whether this is the end: something was sent, or a child has ended."""

    # The controller.

    def take_controller(self, controller: Controller) -> None:
        """Take messages from this controller from here on."""
        self.controller = controller
        os.set_blocking(controller.channel.outgoing, False)
        self.loop.add_reader(controller.channel.fileno(), self.receive)
        self.loop.add_reader(controller.pidfd, self.lose_controller)

    def release_controller(self) -> None:
        """Hang up."""
        if self.controller is not None:
            controller, self.controller = self.controller, None
            self.loop.remove_writer(controller.channel.outgoing)
            self.loop.remove_reader(controller.channel.fileno())
            self.loop.remove_reader(controller.pidfd)
            controller.close()

    def receive(self) -> None:
        """Handle what the controller has sent."""
        if self.controller is not None:
            for message in self.controller.channel.receive():
                if handle := self.handlers.get(type(message)):
                    handle(message)

    def send(self, message: m.Message) -> None:
        """Send a message, as soon as the controller takes it; nothing happens where there is none."""
        if self.controller is not None:
            self.controller.channel.post(message)
            self._flush()

    def say(self, text: str) -> None:
        """Tell the user, from any thread."""
        self.loop.call_soon_threadsafe(partial(self.send, m.Notice(text)))

    def on_unsent(self, waiting: int) -> None:
        """Take note of how many bytes wait to be sent."""

    def _flush(self) -> None:
        if self.controller is None:
            return
        channel = self.controller.channel
        channel.flush()
        if channel.closed:
            self.lose_controller()
            return
        if channel.unsent:
            self.loop.add_writer(channel.outgoing, self._flush)
        else:
            self.loop.remove_writer(channel.outgoing)
        self.on_unsent(channel.unsent)
        self.on_progress()

    # Children.

    def hold(self, child: ChildProcess, on_end: Callable[[int], None]) -> None:
        """Call back with the status of a child when it has ended."""
        self._children.append(child)
        self.loop.add_reader(child.pidfd, partial(self._reap, child, on_end))

    def _reap(self, child: ChildProcess, on_end: Callable[[int], None]) -> None:
        self._forget(child)
        on_end(child.wait())
        self.on_progress()

    def end(self, child: ChildProcess) -> None:
        """Kill a child and wait for its end, of which nobody is told."""
        if child in self._children:
            self._forget(child)
            child.signal(signal.SIGKILL)
            child.wait()

    def _forget(self, child: ChildProcess) -> None:
        self._children.remove(child)
        self.loop.remove_reader(child.pidfd)

    def give(self, child: ChildProcess, data: bytes, on_taken: Callable[[], None] = lambda: None) -> None:
        """Write to a child's stdin, and call back when all is written; no data: its end."""
        child.give(data)
        if child.wants_input:
            self.loop.add_writer(child.stdin, partial(self._feed, child, child.stdin, on_taken))

    def _feed(self, child: ChildProcess, stdin: int, on_taken: Callable[[], None]) -> None:
        is_taken = child.feed()
        if not child.wants_input:
            self.loop.remove_writer(stdin)
        if is_taken:
            on_taken()

    def stop(self, grace: float) -> None:
        """Have the ranks ended: ask them now, kill them after ``grace`` seconds."""
        if grace > 0:
            self.terminate()
        if self._deadline is not None:
            self._deadline.cancel()
        self._deadline = self.loop.call_later(grace, self.kill)

    @property
    def is_stopping(self) -> bool:
        """Whether the ranks have been asked to end."""
        return self._deadline is not None

    # Limits, where no cgroup keeps them.

    def limit(self, pid: int, limits: Confinement, on_passed: Callable[[str], None]) -> None:
        """Look at a process's memory from here on, and call back with the reason when it has passed its limit."""
        if limits.looks:
            self._limited[pid] = limits, on_passed
            self._look = self._look or self.loop.call_later(0.0, self._look_at_limits)

    def _look_at_limits(self) -> None:
        for pid, (limits, on_passed) in [*self._limited.items()]:
            why = limits.passed(pid)
            if why or not Path(f"/proc/{pid}").exists():
                del self._limited[pid]
            if why:
                on_passed(why)
        self._look = self.loop.call_later(LOOK_S, self._look_at_limits) if self._limited else None
