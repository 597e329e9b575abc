"""Signals to hvdrun that are for the ranks: it forwards them to each rank and continues, like Open MPI's mpirun."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from hvdtest.hvdrun import HVDRUN, NIGHTLY, RANK
from hvdtest.launch import clean_environment

from hvd_kernel.processes.channel.messages import FORWARDED

pytestmark = [pytest.mark.mp, pytest.mark.usefixtures("mark")]

NP = 2
SCRIPT = f"""{RANK}
import signal, sys
signals = {{*{[int(number) for number in FORWARDED]}}}
signal.pthread_sigmask(signal.SIG_BLOCK, signals)
sys.stdout.write(f"{{rank}} has agent {{os.getppid()}}\\n")
sys.stdout.flush()
for _ in signals:
    sys.stdout.write(f"{{rank}} received {{signal.sigwait(signals).name}}\\n")
    sys.stdout.flush()
"""


def agents_of(process: subprocess.Popen[str]) -> list[int]:
    """The process id of each rank's agent, once the ranks are ready."""
    ready = [line.split(" has agent ") for line in lines(process, NP)]
    assert [rank for rank, _ in ready] == [str(rank) for rank in range(NP)]
    return [int(pid) for _, pid in ready]


def lines(process: subprocess.Popen[str], count: int) -> list[str]:
    """The next lines, without their prefixes, in the order of ranks."""
    assert process.stdout is not None
    return sorted(process.stdout.readline().partition("<stdout>:")[2].strip() for _ in range(count))


@pytest.mark.parametrize(
    "flags",
    [
        ["-np", str(NP)],
        pytest.param(["-np", str(NP), "-H", "here:1,there:1"], marks=NIGHTLY),
        pytest.param(["-np", str(NP), "--mpi"], marks=NIGHTLY),
        ["-np", str(NP), "--min-np", str(NP)],
    ],
    ids=["agent", "ssh", "mpi", "elastic"],
)
def test_signals_are_forwarded_to_every_rank(ssh: tuple[dict[str, str], Path], flags: list[str]) -> None:
    command = [*HVDRUN, *flags, sys.executable, "-u", "-c", SCRIPT]
    with subprocess.Popen(
        command, env=clean_environment(**ssh[0]), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True
    ) as process:
        agents_of(process)
        for number in FORWARDED:
            process.send_signal(number)
            assert lines(process, NP) == [f"{rank} received {number.name}" for rank in range(NP)]
        assert process.wait() == 0


def test_signals_to_an_agent_are_for_its_ranks(ssh: tuple[dict[str, str], Path]) -> None:
    """A batch system signals each step of a job; remote agents ended at SIGUSR1."""
    command = [*HVDRUN, "-np", str(NP), "-H", "here:1,there:1", sys.executable, "-u", "-c", SCRIPT]
    with subprocess.Popen(
        command, env=clean_environment(**ssh[0]), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True
    ) as process:
        agents = agents_of(process)
        for number in FORWARDED:
            for rank, agent in enumerate(agents):
                os.kill(agent, number)
                assert lines(process, 1) == [f"{rank} received {number.name}"]
        assert process.wait() == 0


def test_a_signal_without_ranks_does_not_end_hvdrun(tmp_path: Path) -> None:
    """The reader of the command line waits in a FIFO: it has no rank yet."""
    hostfile = tmp_path / "hosts"
    os.mkfifo(hostfile)
    command = [*HVDRUN, "-np", "1", "--hostfile", str(hostfile), sys.executable, "-c", "print('ran')"]
    with subprocess.Popen(
        command, env=clean_environment(), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True
    ) as process:
        with hostfile.open("w") as written:  # returns when hvdrun has opened it
            for number in FORWARDED:
                process.send_signal(number)
            written.write("localhost slots=1\n")
        hostfile.unlink()
        hostfile.write_text("localhost slots=1\n")  # for later readers
        assert process.communicate()[0] == "[0]<stdout>:ran\n"
        assert process.returncode == 0


@pytest.mark.parametrize("handled", [signal.SIG_IGN, lambda *_: None], ids=["ignored", "handled"])
def test_signal_handlers_of_the_calling_program_are_kept(handled: object) -> None:
    from hvd_kernel.launch.agents import Agents
    from hvd_kernel.launch.forwarding import forwarded

    before = signal.signal(signal.SIGUSR1, handled)
    agents = Agents()
    try:
        with forwarded(agents):
            assert signal.getsignal(signal.SIGUSR1) is handled
            assert callable(signal.getsignal(signal.SIGUSR2))
        assert signal.getsignal(signal.SIGUSR1) is handled
    finally:
        agents.end()
        signal.signal(signal.SIGUSR1, before)
