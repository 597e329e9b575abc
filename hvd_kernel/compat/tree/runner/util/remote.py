"""``horovod.runner.util.remote``: a command of the shell as one for another host."""

from __future__ import annotations

from hvd_kernel.compat.tree.runner.common.util import env as env_util

SSH_COMMAND_PREFIX = "ssh -o PasswordAuthentication=no -o StrictHostKeyChecking=no"


def get_ssh_command(
    local_command: str,
    host: str,
    port: int | None = None,
    identity_file: str | None = None,
    timeout_s: int | None = None,
) -> str:
    """Return the command that runs ``local_command``, which is quoted as ssh needs it, on the host."""
    options = {"-p": port, "-i": identity_file, "-o ConnectTimeout=": timeout_s}
    given = [f"{option}{'' if option.endswith('=') else ' '}{value}" for option, value in options.items() if value]
    return " ".join([SSH_COMMAND_PREFIX, host, *given, local_command])


def get_remote_command(
    local_command: str,
    host: str,
    port: int | None = None,
    identity_file: str | None = None,
    timeout_s: int | None = None,
) -> str:
    """Return the same; in a pod of Kubeflow's MPI operator by its own means instead of ssh."""
    if env_util.is_kubeflow_mpi():
        return f"{env_util.KUBEFLOW_MPI_EXEC} {host} {local_command}"
    return get_ssh_command(local_command, host, port, identity_file, timeout_s)
