"""Starting ranks as Horovod's launchers are asked to: their settings and arguments as one of our jobs."""

from __future__ import annotations

import importlib
import shlex
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from hvd_kernel.settings.lists import entries


def launch(settings: Any, nics: Iterable[str] | None, env: Mapping[str, str] | None, command: Any, **more: Any) -> None:
    """Start the command on every rank and wait for their end.

    Raises
    ------
    RuntimeError
        A rank failed; the others were ended.
    ConfigError
        The job cannot be as the settings describe it.
    """
    hosts = importlib.import_module("hvd_kernel.launch.placement")
    np = settings.num_proc or sum(host.slots for host in hosts.named(settings.hosts, None, 1))
    stdout, stderr = more.pop("stdout", None), more.pop("stderr", None)
    job = _job(settings, nics, env, command, np=np, hosts=settings.hosts, **more)
    _check(importlib.import_module("hvd_kernel.launch.job_run").launch(job, stdout=stdout, stderr=stderr))


def launch_elastic(settings: Any, env: Mapping[str, str] | None, command: Any) -> None:
    """Start the command as an elastic job, whose hosts ``settings.discovery`` says again and again; wait for its end.

    Raises
    ------
    RuntimeError
        The job failed.
    ConfigError
        The job cannot be as the settings describe it.
    """
    options = importlib.import_module("hvd_kernel.launch.elastic.job.options")
    elastic = importlib.import_module("hvd_kernel.launch.elastic.job.launch")
    start, least = options.sizes(settings.num_proc, settings.min_num_proc, settings.max_num_proc, ())
    asked = options.ElasticOptions(
        np=start,
        min_np=least,
        max_np=settings.max_num_proc,
        script=settings.discovery,
        timeout_s=seconds(settings.elastic_timeout),
        reset_limit=settings.reset_limit,
        cooldown_s=None if settings.cooldown_range is None else tuple(settings.cooldown_range),
    )
    _check(elastic.launch_elastic(_job(settings, None, env, command, np=start), asked))


def _job(settings: Any, nics: Iterable[str] | None, env: Mapping[str, str] | None, command: Any, **more: Any) -> Any:
    return importlib.import_module("hvd_kernel.launch.job_run").Job(
        command=shlex.split(command) if isinstance(command, str) else list(command),
        env=dict(env or {}),
        ssh_port=settings.ssh_port,
        ssh_identity_file=settings.ssh_identity_file,
        network_interface=interface(nics or settings.nics),
        output_filename=settings.output_filename,
        start_timeout_s=seconds(settings.start_timeout),
        timestamp=bool(settings.prefix_output_with_timestamp),
        verbose=bool(settings.verbose),
        **more,
    )


def _check(outcome: Any) -> None:
    if outcome.status:
        raise RuntimeError(
            "Horovod detected that one or more processes exited with non-zero status, thus causing the job to be "
            "terminated. The first process to do so was:\n"
            f"Process name: {outcome.failed}\nExit code: {outcome.status}\n"
        )


def interface(nics: Iterable[str] | str | None) -> str:
    """Return the first of these network interfaces; of a host's own loopback alone none, for ranks find it anyway."""
    names = entries(nics) if isinstance(nics, str) else sorted(nics or ())
    return next((name for name in names if name != "lo"), "")


def seconds(timeout: Any) -> float | None:
    """Return the seconds of a number, or those that are left of a ``Timeout``."""
    left = timeout.remaining() if hasattr(timeout, "remaining") else timeout
    return float(left) if left else None


def mpi_arguments(settings: Sequence[str | None]) -> tuple[str, ...]:
    """Return mpiexec's arguments of several texts."""
    return tuple(word for text in settings for word in shlex.split(text or ""))
