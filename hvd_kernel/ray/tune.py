"""Trials of Ray Tune that train on several ranks: ``DistributedTrainableCreator``, part of Ray until 2.0.

The trial's actor starts the ranks in the trial's placement group, and passes the reports of rank 0 to Tune.
"""

from __future__ import annotations

import io
import tarfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory, mkdtemp
from typing import Any

from hvd_kernel.errors import ConfigError
from hvd_kernel.ray import ray_logger
from hvd_kernel.ray.runner import RayExecutor
from hvd_kernel.ray.utils import ray_api


@dataclass
class _Start:
    """State from which this rank's trial continues."""

    checkpoint: bytes | None = None


_start = _Start()


def DistributedTrainableCreator(  # noqa: N802, PLR0917 - Ray's name, and its signature
    func: Callable[[dict[str, Any]], Any],
    use_gpu: bool = False,
    num_hosts: int | None = None,
    num_workers: int = 1,
    num_cpus_per_worker: int = 1,
    num_gpus_per_worker: int | None = None,
    timeout_s: int = 30,
    replicate_pem: bool = False,
) -> Any:
    """Return a trainable for ``ray.tune.Tuner`` whose trials train on separate ranks.

    Parameters
    ----------
    func
        Function called on every rank with the trial's configuration. It calls ``hvd.init()`` and ``report``.
    num_hosts
        Number of nodes; None: as few as possible.
    num_workers
        Number of ranks; with ``num_hosts``, the number on each node.
    use_gpu, num_cpus_per_worker, num_gpus_per_worker
        Resources of each rank. The trial's actor uses none.
    timeout_s
        Maximum number of seconds in which the ranks of a trial start.
    replicate_pem
        No effect: SSH is not used.

    Raises
    ------
    ConfigError
        The number of nodes or ranks is less than one.

    Examples
    --------
    On a Ray cluster::

        trainable = DistributedTrainableCreator(train, num_workers=2)
        tune.Tuner(trainable, param_space={"lr": tune.grid_search([0.1, 0.01])}).fit()
    """
    del replicate_pem
    if num_workers < 1 or (num_hosts is not None and num_hosts < 1):
        raise ConfigError(f"num_workers={num_workers}, num_hosts={num_hosts}: a trial has 1 rank or more.")
    ray_api()
    from ray import tune  # noqa: PLC0415 - see ray_api

    gpus = (num_gpus_per_worker or 1) * int(use_gpu)
    resources = {"CPU": num_cpus_per_worker} | ({"GPU": gpus} if gpus else {})
    if num_hosts is None:
        placed = {"num_workers": num_workers}
        group = tune.PlacementGroupFactory([{}, *[resources] * num_workers], strategy="PACK")
    else:
        placed = {"num_hosts": num_hosts, "num_workers_per_host": num_workers}
        of_host = {name: count * num_workers for name, count in resources.items()}
        group = tune.PlacementGroupFactory([{}, *[of_host] * num_hosts], strategy="STRICT_SPREAD")
    limits = {"cpus_per_worker": num_cpus_per_worker, "use_gpu": use_gpu, "gpus_per_worker": gpus or None}

    def trial(config: dict[str, Any]) -> None:
        executor = RayExecutor(RayExecutor.create_settings(timeout_s), **placed, **limits)  # type: ignore[arg-type]
        executor.start()
        try:
            checkpoint = tune.get_checkpoint()
            packed = None if checkpoint is None else _pack_checkpoint(checkpoint)
            executor.run(_on_rank, (func, config, packed), callbacks=[_forward])
        finally:
            executor.shutdown()

    return tune.with_resources(trial, group)


def report(metrics: Mapping[str, Any], checkpoint: str | Path | None = None) -> None:
    """Report metrics to this rank's trial. Only the call on rank 0 has an effect.

    Parameters
    ----------
    metrics
        Metrics by name.
    checkpoint
        Folder on rank 0 with the files of the trial's checkpoint. They are copied: the folder may be removed.

    Examples
    --------
    In a function passed to ``DistributedTrainableCreator``::

        report({"loss": float(loss)})
    """
    if ray_logger.is_chief():
        ray_logger.log({"metrics": dict(metrics), "files": None if checkpoint is None else _packed(Path(checkpoint))})


def get_checkpoint() -> Path | None:
    """Return a new folder with the files of the checkpoint from which the trial continues; None for a new trial.

    Examples
    --------
    In a function passed to ``DistributedTrainableCreator``::

        if (folder := get_checkpoint()) is not None:
            model.load_state_dict(torch.load(folder / "model.pt"))
    """
    return None if _start.checkpoint is None else _unpacked(_start.checkpoint, Path(mkdtemp(prefix="hvd-trial-")))


def _on_rank(func: Callable[[dict[str, Any]], Any], config: dict[str, Any], packed: bytes | None) -> None:
    _start.checkpoint = packed
    func(config)


def _forward(value: Mapping[str, Any]) -> None:
    """Pass a report of rank 0 to Tune; ignore other values of ``ray_logger.log``, which come from the user."""
    from ray import tune  # noqa: PLC0415 - see ray_api

    if "metrics" not in value:
        return
    if value.get("files") is None:
        tune.report(value["metrics"])
        return
    with TemporaryDirectory(prefix="hvd-trial-") as name:
        tune.report(value["metrics"], checkpoint=tune.Checkpoint.from_directory(_unpacked(value["files"], Path(name))))


def _pack_checkpoint(checkpoint: Any) -> bytes:
    with checkpoint.as_directory() as name:
        return _packed(Path(name))


def _packed(folder: Path) -> bytes:
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w") as tar:
        tar.add(folder, arcname=".")
    return data.getvalue()


def _unpacked(data: bytes, folder: Path) -> Path:
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        tar.extractall(folder, filter="data")
    return folder
