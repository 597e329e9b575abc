"""Process supervisor: holds child processes for a controller that it has a control channel to, and ends with them.

    controller --pidfd, control channel--> supervisor --PDEATHSIG--> children

The base of the agent of a host (agent.py) and of the supervisor of a notebook's cluster (cluster/supervisor.py), which
handle different messages. As a child subreaper it becomes the parent of all orphans below it, so that at the end it can
kill everything its children have forked. In addition to the channel it watches the controller's process (pidfd),
because any process that has inherited the channel could keep it open.
"""

from __future__ import annotations

import os
import shutil
import signal
import time
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

from hvd_kernel.processes.channel import messages as m
from hvd_kernel.processes.channel.attachment import Controller
from hvd_kernel.processes.child_process import ChildProcess
from hvd_kernel.processes.event_loop import EventLoop, Timer
from hvd_kernel.processes.lifetime import kill_descendants
from hvd_kernel.processes.limits import POLL_S, Confinement
from hvd_kernel.processes.mps.daemon import PrivateDaemon


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
        self._poll: Timer | None = None
        self._deadline: Timer | None = None  # kills the ranks that still run
        self._kill_at = 0.0
        self.adopt_controller(controller)

    def serve(self) -> None:
        """Run the loop until it is stopped, then kill all processes, send the last messages and remove the folders."""
        try:
            self.loop.run()
        finally:
            self.close()

    def close(self) -> None:
        """Kill all processes, send the last messages and remove the folders."""
        for child in self._children:  # first, because the MPS daemon waits for its clients
            child.signal(signal.SIGKILL)
        self.mps.close()
        kill_descendants()
        for folder in self.folders:
            shutil.rmtree(folder, ignore_errors=True)
        self.send_rest()
        if self.controller is not None:
            self.controller.channel.finish()

    # Hooks for subclasses.

    def lose_controller(self) -> None:
        """Handle that the controller is gone."""
        self.loop.stop()

    def terminate(self) -> None:
        """Request the ranks to exit, with SIGTERM or a similar signal."""

    def kill(self) -> None:
        """Kill the ranks."""

    def send_rest(self) -> None:
        """Send the remaining output of killed children."""

    def on_progress(self) -> None:
        """Check whether to stop the loop, after a message was sent or a child has exited."""

    # The controller.

    def adopt_controller(self, controller: Controller) -> None:
        """Handle the messages of this controller from now on."""
        self.controller = controller
        os.set_blocking(controller.channel.outgoing, False)
        self.loop.add_reader(controller.channel.fileno(), self.receive)
        self.loop.add_reader(controller.pidfd, self.lose_controller)

    def release_controller(self) -> None:
        """Disconnect from the controller."""
        if self.controller is not None:
            controller, self.controller = self.controller, None
            self.loop.remove_writer(controller.channel.outgoing)
            self.loop.remove_reader(controller.channel.fileno())
            self.loop.remove_reader(controller.pidfd)
            controller.close()

    def receive(self) -> None:
        """Handle the messages of the controller."""
        if self.controller is not None:
            for message in self.controller.channel.receive():
                if handle := self.handlers.get(type(message)):
                    handle(message)

    def send(self, message: m.Message) -> None:
        """Send a message as soon as the controller can receive it; drop it without a controller."""
        if self.controller is not None:
            self.controller.channel.post(message)
            self._flush()

    def say(self, text: str) -> None:
        """Send a notice for the user, from any thread."""
        self.loop.call_soon_threadsafe(partial(self.send, m.Notice(text)))

    def on_unsent(self, waiting: int) -> None:
        """Handle a change of the number of bytes that wait to be sent."""

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
        """Call ``on_end`` with the status of a child when it has exited."""
        self._children.append(child)
        self.loop.add_reader(child.pidfd, partial(self._reap, child, on_end))

    def _reap(self, child: ChildProcess, on_end: Callable[[int], None]) -> None:
        self._forget(child)
        on_end(child.wait())
        self.on_progress()

    def end(self, child: ChildProcess) -> None:
        """Kill a child and reap it, without a call of its ``on_end``."""
        if child in self._children:
            self._forget(child)
            child.signal(signal.SIGKILL)
            child.wait()

    def _forget(self, child: ChildProcess) -> None:
        self._children.remove(child)
        self.loop.remove_reader(child.pidfd)

    def write(self, child: ChildProcess, data: bytes, on_written: Callable[[], None] = lambda: None) -> None:
        """Write to a child's stdin, and call ``on_written`` when all is written; no data: close it."""
        child.write(data)
        if child.has_unwritten:
            self.loop.add_writer(child.stdin, partial(self._flush_stdin, child, child.stdin, on_written))

    def _flush_stdin(self, child: ChildProcess, stdin: int, on_written: Callable[[], None]) -> None:
        is_written = child.flush()
        if not child.has_unwritten:
            self.loop.remove_writer(stdin)
        if is_written:
            on_written()

    def stop(self, grace: float) -> None:
        """Terminate the ranks now, and kill them after ``grace`` seconds.

        A later call can only shorten that time: a second SIGTERM could end what the ranks do in their handlers.
        """
        kill_at = time.monotonic() + grace
        if self._deadline is None:
            if grace > 0:
                self.terminate()
        elif kill_at < self._kill_at:
            self._deadline.cancel()
        else:
            return
        self._kill_at = kill_at
        self._deadline = self.loop.call_later(grace, self.kill)

    @property
    def is_stopping(self) -> bool:
        """True once the ranks are being stopped."""
        return self._deadline is not None

    # Limits that no cgroup enforces.

    def limit(self, pid: int, limits: Confinement, on_exceeded: Callable[[str], None]) -> None:
        """Poll a process's memory from now on, and call ``on_exceeded`` with the reason when it exceeds its limit."""
        if limits.is_polled:
            self._limited[pid] = limits, on_exceeded
            self._poll = self._poll or self.loop.call_later(0.0, self._poll_limits)

    def _poll_limits(self) -> None:
        for pid, (limits, on_exceeded) in [*self._limited.items()]:
            reason = limits.exceeded(pid)
            if reason or not Path(f"/proc/{pid}").exists():
                del self._limited[pid]
            if reason:
                on_exceeded(reason)
        self._poll = self.loop.call_later(POLL_S, self._poll_limits) if self._limited else None
