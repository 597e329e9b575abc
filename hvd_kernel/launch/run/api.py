"""``hvd_kernel.run``: a function on many ranks, called like a function. Horovod's signature, and its results.

Terms.
  fresh   processes that are started for this call and end with it
  reused  the ranks of the notebook, which ``%%hvdrun`` uses too and which stay: a second call costs milliseconds
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from hvd_kernel.errors import UsageError
from hvd_kernel.launch.elastic.discovery.polled import HostDiscovery
from hvd_kernel.launch.run.arguments import Asked, checked, need_fresh, refuse_reuse
from hvd_kernel.launch.run.call import pack_call
from hvd_kernel.launch.run.in_processes import in_processes


def run(  # noqa: PLR0917 - Horovod's signature
    func: Callable[..., Any],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    num_proc: int = 1,
    min_num_proc: int | None = None,
    max_num_proc: int | None = None,
    slots: int | None = None,
    reset_limit: int | None = None,
    cooldown_range: Sequence[int] | None = None,
    hosts: str | None = None,
    hostfile: str | None = None,
    host_discovery_script: str | HostDiscovery | None = None,
    start_timeout: float | None = None,
    ssh_port: int | None = None,
    ssh_identity_file: str | None = None,
    disable_cache: bool | None = None,
    output_filename: str | None = None,
    verbose: int | None = None,
    use_gloo: bool | None = None,
    use_mpi: bool | None = None,
    mpi_args: str | None = None,
    network_interface: str | None = None,
    network_interfaces: str | Sequence[str] | None = None,
    executable: str | None = None,
    np: int | None = None,
    min_np: int | None = None,
    max_np: int | None = None,
    *,
    env: Mapping[str, str] | None = None,
    reuse: bool | None = None,
    elastic_timeout: float | None = None,
    max_restarts: int | None = None,
    spares: int | None = None,
    slot_failures: int | None = None,
    host_failures: int | None = None,
    hang_timeout: float | None = None,
) -> list[Any]:
    """Call ``func(*args, **kwargs)`` on np ranks and return what it returned, in rank order.

    The function may come from a notebook, or from a script's own file without an ``if __name__ == "__main__"``. In a
    notebook the ranks are those of ``%%hvdrun`` where their number fits, or where there are none yet; else fresh ones.

    Parameters
    ----------
    func, args, kwargs
        What is called on every rank; it says ``hvd.init()`` itself, as a script does.
    num_proc, np
        How many ranks.
    hosts, hostfile
        Where they run: "h1:4,h2:4", or a file of lines "host slots=N"; this machine where nothing is said.
    slots
        Slots of the hosts that do not say theirs (1): ``hosts="h1,h2", slots=4``. Without hosts or a script: a warning.
    start_timeout
        Seconds that a rank waits for the others.
    ssh_port, ssh_identity_file
        How other hosts are reached.
    disable_cache
        Accepted; nothing is cached here.
    output_filename
        Folder that takes each rank's output.
    verbose
        Say how the ranks are started.
    use_gloo, use_mpi, mpi_args
        Whether this package or MPI starts them, and what MPI is told.
    network_interface, network_interfaces
        Network interface that the ranks listen on.
    executable
        Python interpreter of the ranks.
    min_num_proc, max_num_proc, min_np, max_np
        The number of ranks may change while they run, between these: a function made by ``hvd.elastic.run`` outlives
        ranks that fail, and takes in those that come. What ranks 0 to ``min_num_proc`` - 1 return is returned.
    host_discovery_script
        Instead of ``hosts``: a program that prints the hosts that there are, lines ``host:slots``, or an object with
        ``find_available_hosts_and_slots() -> {host: slots}``.
    reset_limit, cooldown_range, elastic_timeout, max_restarts
        How often the ranks may meet again; least and most seconds for which a host that failed is left alone; longest
        wait for slots, in seconds; processes that may be started in place of failed ones.
    slot_failures, host_failures, hang_timeout
        After how many failures a slot is left out, and after how many such slots their host; seconds that the others
        wait in a reset for a rank that does not come, until it is replaced.
    spares
        Processes that wait on each host, their imports done, to take the place of a rank that fails.
    env
        Variables that the ranks get in addition to this process's.
    reuse
        True: the notebook's ranks or an error; False: fresh ones.

    Raises
    ------
    RankFailed
        The function raised; the message names the rank and holds its traceback, ``__cause__`` is its exception.
    RankDied
        A rank ended before its function returned.
    ConfigError
        An option cannot be honoured.
    UsageError
        This process is a rank itself.

    Examples
    --------
    >>> hvd_kernel.run(pow, (2, 10), np=2)
    [1024, 1024]
    """
    asked = checked(dict(locals()))
    if not callable(func):
        raise TypeError(f"run() calls a function on the ranks, but got {func!r}.")
    _refuse_on_a_rank()
    own_python = asked.given.get("executable") in {None, sys.executable}
    call = pack_call(func, args, kwargs or {}, sys.path if own_python else ())
    shell = _notebook(asked)
    if shell is not None:
        from hvd_kernel.launch.run.in_notebook import in_notebook  # noqa: PLC0415 - a script has no IPython

        found = in_notebook(shell, call, asked)
        if found is not None:
            return found
    if asked.verbose:
        sys.stderr.write(
            f"run: starting {asked.np} fresh rank(s), {asked.hosts or asked.hostfile or 'on this machine'}\n"
        )
    return in_processes(call, asked.job, far=asked.far, elastic=asked.elastic)


def _notebook(asked: Asked) -> Any:
    """Return the shell whose ranks are to be used; None: fresh processes."""
    if asked.reuse is False:
        return None
    if option := need_fresh(asked):
        refuse_reuse(asked, f"{option} is fixed when a rank starts")
        return None
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    if shell is None:
        refuse_reuse(asked, "this is not a notebook, and nothing else keeps ranks")
    return shell


def _refuse_on_a_rank() -> None:
    session = sys.modules.get("hvd_kernel.core.session")
    of_notebook = "hvd_kernel.worker.shell.control" in sys.modules
    if of_notebook or (session is not None and session.is_initialized() and session.size() > 1):
        raise UsageError("run() starts ranks, but this process is one itself: call it in the notebook or the script.")
