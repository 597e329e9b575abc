"""hvdrun with hosts: placement of ranks, what is forwarded to another machine, and the report of an unusable host."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
from hvdtest import sshd
from hvdtest.hosts import Hosts, why_not
from hvdtest.hvdrun import NIGHTLY, SUM, good, hvdrun, lines_of

pytestmark = pytest.mark.mp


def test_hosts_and_hostfile_on_this_machine(mark: str, tmp_path: Path) -> None:
    file = tmp_path / "hosts"
    file.write_text("# ours\nlocalhost slots=1\n127.0.0.1 slots=2\n")
    for words in (["-H", "localhost:1,127.0.0.1:2"], ["--hostfile", str(file)], ["-hostfile", str(file), "-np", "3"]):
        text = good(hvdrun(*words, script=SUM))
        assert [lines_of(text, r) for r in range(3)] == [[f"{r} 3 {r} 3 1 6.0"] for r in range(3)]


def test_two_hosts_through_ssh(ssh: tuple[dict[str, str], Path], tmp_path: Path) -> None:
    path, log = ssh
    text = good(
        hvdrun(
            "-np", "4", "-H", "alpha:2,beta:2", "-p", "2222", "-i", "/k", script=SUM, cwd=tmp_path, FOO="s3cret", **path
        )
    )
    assert [lines_of(text, r) for r in range(4)] == [[f"{r} 4 {r % 2} 2 2 10.0"] for r in range(4)]
    calls = sorted(log.read_text().splitlines())  # at once
    assert [re.findall(r"-p 2222 -i /k (\w+) exec", call) for call in calls] == [["alpha"], ["beta"]]
    assert "s3cret" not in log.read_text()
    assert "SECRET" not in log.read_text()


@pytest.mark.skipif(bool(why_not()), reason=why_not())
@pytest.mark.parametrize(
    "hosts_of_ranks", ["localhost:2,10.77.0.2:2", pytest.param("10.77.0.2:2,10.77.0.1:2", marks=NIGHTLY)]
)
def test_two_machines(mark: str, tmp_path: Path, hosts_of_ranks: str) -> None:
    """The ranks meet at an address that both reach, and know each other by the run's secret.

    The first address of each host is one that the other has too: who calls there reaches himself.
    """
    with Hosts(2, docker=True) as hosts, hosts.inside(0):
        done = hvdrun("--verbose", "-H", hosts_of_ranks, script=SUM, **hosts.ssh(tmp_path))
    text = good(done)
    assert [lines_of(text, r) for r in range(4)] == [[f"{r} 4 {r % 2} 2 2 10.0"] for r in range(4)]
    assert f"rendezvous at {'10.77.0.1' if hosts_of_ranks.startswith('localhost') else '10.77.0.2'}:" in done.stderr


@NIGHTLY
@pytest.mark.skipif(bool(why_not() or sshd.why_not()), reason=why_not() or sshd.why_not() or "none")
def test_a_hostfile_runs_over_openssh(mark: str, tmp_path: Path) -> None:
    """The machines are network namespaces, the server and the client are OpenSSH's own."""
    (tmp_path / "hosts").write_text("10.77.0.1 slots=1\n10.77.0.2 slots=2\n")
    (tmp_path / "sum.py").write_text(SUM)
    flags = ["--hostfile", str(tmp_path / "hosts"), "-np", "3", "--ssh-port", str(sshd.PORT)]
    key = ["--ssh-identity-file", str(tmp_path / "person")]
    script = [sys.executable, "-P", "sum.py"]
    with Hosts(2) as hosts, sshd.serving(hosts, 1, tmp_path) as path, hosts.inside(0):
        done = hvdrun(*flags, *key, *script, cwd=tmp_path, **path)
        stranger = hvdrun(*flags, *script, cwd=tmp_path, **path)
    placements = ["0 3 0 1 2 6.0", "1 3 0 2 2 6.0", "2 3 1 2 1 6.0"]
    assert [lines_of(good(done), rank) for rank in range(3)] == [[placement] for placement in placements]
    assert stranger.returncode == 1
    assert "hvdrun: host 10.77.0.2 cannot be used: ssh cannot log in there: `ssh " in stranger.stderr


def test_environment_and_folder_on_another_host(ssh: tuple[dict[str, str], Path], tmp_path: Path) -> None:
    script = "import os; print(os.getcwd(), os.environ['FOO'], os.environ['HOROVOD_HOSTNAME'], 'TMPDIR' in os.environ)"
    text = good(hvdrun("-H", "alpha:1", script=script, cwd=tmp_path, FOO="a 'b'", TMPDIR="/tmp", **ssh[0]))
    assert lines_of(text, 0) == [f"{tmp_path} a 'b' alpha False"]


@pytest.mark.parametrize(
    ("host", "seconds", "said"),
    [
        ("closed", "60", "host closed cannot be used: ssh cannot log in there: `ssh "),
        ("bare", "60", "has no hvd_kernel of the same version: install it there, at the same path"),
        ("mute", "2", "host mute did not answer within 2 s: check that it is up"),
    ],
)
def test_unusable_host(ssh: tuple[dict[str, str], Path], host: str, seconds: str, said: str) -> None:
    """It is named before another one that may be slow to answer."""
    done = hvdrun("-H", f"{host}:1,alpha:1", "--start-timeout", seconds, script="print('never')", **ssh[0])
    assert (done.returncode, done.stdout) == (1, "")
    assert said in done.stderr


def test_lost_host(ssh: tuple[dict[str, str], Path]) -> None:
    script = """
import os, signal, time
if os.environ["HOROVOD_HOSTNAME"] == "beta":
    os.kill(os.getppid(), signal.SIGKILL)
time.sleep(120)
"""
    done = hvdrun("-H", "alpha:1,beta:1", script=script, **ssh[0])
    assert done.returncode == 1
    assert done.stderr.startswith("hvdrun: host beta was lost while its ranks ran; all ranks have been ended.")
