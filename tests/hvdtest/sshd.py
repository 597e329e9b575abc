"""OpenSSH's server on a host of its own (a network namespace), and the real client that knows its key."""

from __future__ import annotations

import os
import select
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hvdtest.hosts import Hosts, address

SERVER = "/usr/sbin/sshd"
PORT = 2222
_CONF = """
ListenAddress {address}:{port}
HostKey {folder}/host
AuthorizedKeysFile {folder}/person.pub
PidFile none
PasswordAuthentication no
PermitRootLogin prohibit-password
StrictModes no
UsePAM no
LogLevel VERBOSE
"""
_CLIENT = """#!/bin/sh
exec {ssh} -o UserKnownHostsFile={folder}/known "$@"
"""


def why_not() -> str:
    """Return what is missing for sshd; empty if it is complete."""
    if not os.access(SERVER, os.X_OK):
        return f"there is no {SERVER}: `.ci/system slurm` installs it"
    return "" if shutil.which("ssh") and shutil.which("ssh-keygen") else "the ssh client is missing"


@contextmanager
def serving(hosts: Hosts, host: int, folder: Path) -> Iterator[dict[str, str]]:
    """Start a server on that host for the user of ``folder/person``; yield the variables by which ``ssh`` recognises it."""
    for name in ("host", "person"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / name)], check=True)
    (folder / "known").write_text(f"[{address(host)}]:{PORT} {(folder / 'host.pub').read_text()}")
    (folder / "sshd.conf").write_text(_CONF.format(address=address(host), port=PORT, folder=folder))
    client = folder / "ssh"
    client.write_text(_CLIENT.format(ssh=shutil.which("ssh"), folder=folder))
    client.chmod(0o755)
    Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)  # sshd wants it, empty
    with hosts.inside(host):
        server = subprocess.Popen([SERVER, "-D", "-e", "-f", str(folder / "sshd.conf")], stderr=subprocess.PIPE)
    try:
        assert server.stderr is not None
        _await(server.stderr.fileno(), b"listening on")
        yield {"PATH": f"{folder}:{os.environ['PATH']}"}
    finally:
        server.terminate()
        server.communicate()


def _await(descriptor: int, words: bytes) -> None:
    said = b""
    while words not in said.lower():
        ready, _, _ = select.select([descriptor], [], [], 60)
        data = os.read(descriptor, 1 << 16) if ready else b""
        assert data, f"sshd does not listen: {said.decode()}"
        said += data
