"""A rank's stack by its signal handler, through a pipe: it is read to its end, or to the rank's."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from hvd_kernel.diagnosis import stack_pipe
from hvd_kernel.protocol.messages import STACK_PIPE

WRITER = """
import os, signal, sys, time
pipe = os.open(sys.argv[1], os.O_RDWR | os.O_NONBLOCK)
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGURG})  # a handler's would be lost just before a sleep
print("ready", flush=True)
signal.sigwait({signal.SIGURG})
for pause, piece in enumerate(sys.argv[2:]):
    time.sleep(0.1 * pause)
    os.write(pipe, piece.encode())
"""
WRITTEN = [
    'Stack (most recent call first):\n  File "/tmp/ipykernel_0/1.py", li',
    'ne 4 in inner\n  File "/tmp/ipykernel_0/1.py", line 5 in <module>\n',
    '  File "/x/IPython/core/interactiveshell.py", line 1 in run_code\nend of sta',
    "ck\n",
]


@pytest.mark.parametrize("pieces", [WRITTEN, WRITTEN[:1]], ids=["to its end", "until the rank ends"])
def test_a12_a_stack_is_read_however_slowly_it_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pieces: list[str]
) -> None:
    monkeypatch.setattr(stack_pipe, "_WRITTEN_S", 60.0)
    (tmp_path / "ipython").mkdir()
    pipe = tmp_path / "ipython" / STACK_PIPE.format(rank=0)
    os.mkfifo(pipe)
    with subprocess.Popen([sys.executable, "-c", WRITER, str(pipe), *pieces], stdout=subprocess.PIPE) as rank:
        assert rank.stdout is not None
        assert rank.stdout.readline() == b"ready\n"
        assert stack_pipe.read(tmp_path, 0, rank.pid) == "".join(pieces).splitlines()
