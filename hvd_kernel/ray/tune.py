"""Trials of Ray Tune that train on several ranks: ``DistributedTrainableCreator``, which Ray had for Horovod until 2.0.

The trial's own actor leads: it starts the ranks in the trial's placement group, and hands on what rank 0 reports.
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
class _Begin:
    """What this rank's trial goes on from."""

    checkpoint: bytes | None = None


_begin = _Begin()


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
    """Return a trainable for ``ray.tune.Tuner``, each trial of which trains on ranks of its own.

    Parameters
    ----------
    func
        Is called on every rank with the trial's configuration; it says ``hvd.init()`` itself, and ``report``.
    num_hosts
        Nodes; None: as few as possible.
    num_workers
        Ranks; with ``num_hosts``, ranks on each.
    use_gpu, num_cpus_per_worker, num_gpus_per_worker
        Resources of each rank. The process that leads them takes none.
    timeout_s
        Seconds that the ranks of a trial may take to start.
    replicate_pem
        Accepted: nothing here goes over SSH.

    Raises
    ------
    ConfigError
        A trial would have no rank.

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
        of_host = {name: each * num_workers for name, each in resources.items()}
        group = tune.PlacementGroupFactory([{}, *[of_host] * num_hosts], strategy="STRICT_SPREAD")
    told = {"cpus_per_worker": num_cpus_per_worker, "use_gpu": use_gpu, "gpus_per_worker": gpus or None}

    def trial(config: dict[str, Any]) -> None:
        executor = RayExecutor(RayExecutor.create_settings(timeout_s), **placed, **told)  # type: ignore[arg-type]
        executor.start()
        try:
            begin = tune.get_checkpoint()
            packed = None if begin is None else _of(begin)
            executor.run(_on_rank, (func, config, packed), callbacks=[_hand_on])
        finally:
            executor.shutdown()

    return tune.with_resources(trial, group)


def report(metrics: Mapping[str, Any], checkpoint: str | Path | None = None) -> None:
    """Report figures to the trial that this rank belongs to. Those of rank 0 count; the others' calls do nothing.

    Parameters
    ----------
    metrics
        Figures by name.
    checkpoint
        A folder of rank 0's whose files are the trial's checkpoint; it may be removed afterwards.

    Examples
    --------
    In a function that ``DistributedTrainableCreator`` was given::

        report({"loss": float(loss)})
    """
    if ray_logger.is_chief():
        ray_logger.log({"metrics": dict(metrics), "files": None if checkpoint is None else _packed(Path(checkpoint))})


def get_checkpoint() -> Path | None:
    """Return a new folder with the files of the checkpoint that the trial goes on from; None: it begins.

    Examples
    --------
    In a function that ``DistributedTrainableCreator`` was given::

        if (folder := get_checkpoint()) is not None:
            model.load_state_dict(torch.load(folder / "model.pt"))
    """
    return None if _begin.checkpoint is None else _unpacked(_begin.checkpoint, Path(mkdtemp(prefix="hvd-trial-")))


def _on_rank(func: Callable[[dict[str, Any]], Any], config: dict[str, Any], packed: bytes | None) -> None:
    _begin.checkpoint = packed
    func(config)


def _hand_on(said: Mapping[str, Any]) -> None:
    """Report to Tune what rank 0 has; other values of ``ray_logger.log`` are the user's own, and go nowhere here."""
    from ray import tune  # noqa: PLC0415 - see ray_api

    if "metrics" not in said:
        return
    if said.get("files") is None:
        tune.report(said["metrics"])
        return
    with TemporaryDirectory(prefix="hvd-trial-") as name:
        tune.report(said["metrics"], checkpoint=tune.Checkpoint.from_directory(_unpacked(said["files"], Path(name))))


def _of(checkpoint: Any) -> bytes:
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
