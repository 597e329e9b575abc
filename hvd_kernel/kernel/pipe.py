"""Encrypted output pipe from children that a cell forks.

ipykernel receives the output of forked children on a local TCP port that every user may write to, and checks a secret
inside the message. This pipe also requires a CurveZMQ key, which only a fork of this process has.
"""

from __future__ import annotations

import os
from typing import Any

import zmq
from ipykernel.iostream import IOPubThread
from zmq.eventloop.zmqstream import ZMQStream

_LINGER_MS = 10_000  # for a child's last output, if the kernel is slow to receive on a busy machine


class PrivatePipe(IOPubThread):
    """ipykernel's publishing thread, with CurveZMQ on the pipe."""

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
