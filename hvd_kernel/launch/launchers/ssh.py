"""Commands that start an agent, here directly, elsewhere through ssh or srun; and explanations of their failures."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence

from hvd_kernel.errors import ClusterError

_AGENT = ("-P", "-m", "hvd_kernel.processes.agent")
# No prompts, since no user can answer them. A host that vanishes silently is noticed within half a minute.
_OPTIONS = ("BatchMode=yes", "ConnectTimeout=10", "ServerAliveInterval=10", "ServerAliveCountMax=3")
_NOT_FOUND, _SSH_FAILED = 127, 255


STEPS = {
    # One more step beside the running ones; without the options it would have one core and no memory.
    "srun": ("srun", "--quiet", "--overlap", "--unbuffered", "--cpu-bind=none", "--mem=0", "-N1", "-n1", "-w"),
}
"""An allocation's own launcher -> its command to start one process on a host, up to the host's name."""


def agent_command(host: str, *, local: bool, port: int | None, identity: str | None, via: str = "") -> list[str]:
    """Return the command that starts the agent of a host; ``via``: one of ``STEPS``, else ssh."""
    agent = [sys.executable, *_AGENT]
    if local:
        return agent
    return [*STEPS[via], host, *agent] if via else [*ssh(port, identity), host, f"exec {shlex.join(agent)}"]


def ssh(port: int | None, identity: str | None) -> list[str]:
    """Return the ssh command with its options."""
    command = ["ssh", "-T", *(word for option in _OPTIONS for word in ("-o", option))]
    if port is not None:
        command += ["-p", str(port)]
    if identity is not None:
        command += ["-i", identity]
    return command


def unreachable(host: str, command: Sequence[str], status: int, output: str) -> ClusterError:
    """Explain why the agent of a host did not start."""
    by_hand = shlex.join([*command[: command.index(host)], host, "true"]) if host in command else ""
    step = command[0] if command[0] in STEPS else ""
    if "No module named" in output:
        reason = f"its {sys.executable} has no hvd_kernel of the same version: install it there, at the same path"
    elif status == _NOT_FOUND:
        reason = f"there is no {sys.executable} there: every host needs this Python environment at the same path"
    elif step:
        reason = f"{step} ended with status {status}: `{by_hand}` must work"
    elif by_hand and status == _SSH_FAILED:
        reason = f"ssh cannot log in there: `{by_hand}` must work without a password or a question"
    else:
        reason = f"its agent ended with status {status} before it said anything"
    return ClusterError(f"host {host} cannot be used: {reason}.{_quoted(output)}")


def silent(host: str, seconds: float, output: str) -> ClusterError:
    """Explain that a host's agent did not answer in time."""
    return ClusterError(
        f"host {host} did not answer within {seconds:g} s: check that it is up and that `ssh {host} true` works, "
        f"or raise --start-timeout.{_quoted(output)}"
    )


def other_version(host: str, remote: str, local: str) -> ClusterError:
    """Explain that a host has another version of this package."""
    return ClusterError(f"host {host} has hvd_kernel {remote}, this one has {local}: install the same version on both.")


def lost(host: str, output: str) -> ClusterError:
    """Explain that a host was lost while its ranks ran."""
    return ClusterError(f"host {host} was lost while its ranks ran; all ranks have been ended.{_quoted(output)}")


def _quoted(output: str) -> str:
    return f" It said:\n{output.strip()}" if output.strip() else ""
