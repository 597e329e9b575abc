"""HvdKernel: ipykernel's kernel (completion, inspection, debugger, subshells, widgets) with the magics.

The output pipe of its forked children is encrypted.
"""

from __future__ import annotations

import os
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import zmq
from ipykernel.iostream import IOPubThread
from traitlets import Type
from zmq.eventloop.zmqstream import ZMQStream

from hvd_kernel.errors import ConfigError
from hvd_kernel.kernel.concurrent_requests import ConcurrentKernel
from hvd_kernel.kernel.interrupt_key import HvdShell, Interrupts
from hvd_kernel.magics import load_ipython_extension, manager_of
from hvd_kernel.settings.traits import SettingTraits


def _version() -> str:
    try:
        return version("hvd-kernel")
    except PackageNotFoundError:  # run from a source tree that is not installed
        return "0"


class HvdKernel(ConcurrentKernel, SettingTraits):
    """ipykernel's kernel with ``%%hvdrun``."""

    implementation = "hvd_kernel"
    implementation_version = _version()

    shell: Any
    shell_class = Type(HvdShell)

    def __init__(self, **kwargs: Any) -> None:
        self.interrupts = Interrupts()
        super().__init__(**kwargs)
        try:
            load_ipython_extension(self.shell)
        except ConfigError as error:  # of HVD_COMPAT: a notebook works without ``import horovod``
            self.log.warning("%s", error)

    @property
    def banner(self) -> str:  # type: ignore[override]
        """Name and version of this kernel, above IPython's banner."""
        return (
            f"hvd_kernel {self.implementation_version}: %%hvdrun -np 4 runs a cell on four ranks\n{self.shell.banner}"
        )

    def pre_handler_hook(self) -> None:
        """Install the interrupt handler for a request of the shell channel."""
        self.saved_sigint_handler = self.interrupts.begin()

    def do_shutdown(self, restart: bool) -> Any:
        """Stop the ranks, except those that are kept, then the kernel."""
        manager = manager_of(self.shell)
        if manager is not None:
            manager.end()
        return super().do_shutdown(restart)  # type: ignore[no-untyped-call]


_LINGER_MS = 10_000  # for a child's last output, if the kernel is slow to receive on a busy machine


class PrivatePipe(IOPubThread):
    """ipykernel's publishing thread, with an encrypted output pipe from children that a cell forks.

    ipykernel receives their output on a local TCP port that every user may write to, and checks a secret inside the
    message. This pipe also requires a CurveZMQ key, which only a fork of this process has.
    """

    def _setup_pipe_in(self) -> None:
        self._pipe_uuid = os.urandom(16)
        self._pipe_key, secret = zmq.curve_keypair()
        pipe = self.socket.context.socket(zmq.PULL)
        pipe.linger = 0
        pipe.curve_secretkey = secret
        pipe.curve_server = True
        self._pipe_port = pipe.bind_to_random_port("tcp://127.0.0.1")
        self._pipe_in = ZMQStream(pipe, self.io_loop)
        self._pipe_in.on_recv(self._handle_pipe_msg)

    def _setup_pipe_out(self) -> tuple[Any, Any]:
        context: Any = zmq.Context()  # a new one: this is the child
        pipe = context.socket(zmq.PUSH)
        pipe.linger = _LINGER_MS
        pipe.curve_serverkey = self._pipe_key
        pipe.curve_publickey, pipe.curve_secretkey = zmq.curve_keypair()
        pipe.connect(f"tcp://127.0.0.1:{self._pipe_port}")
        return context, pipe
