"""MLflow, through its package: ``pip install mlflow-skinny``. Without a URI it goes where MLFLOW_TRACKING_URI says.

A store in files (``mlflow:mlruns``) is what MLflow 3 refuses unless MLFLOW_ALLOW_FILE_STORE=true; naming one is leave
enough. MLFLOW_EXPERIMENT_NAME names the experiment, MLFLOW_RUN_ID a run that is to go on.
"""

from __future__ import annotations

import importlib
import os
import re
from collections.abc import Mapping
from typing import Any

from hvd_kernel.tracking.sink import MODEL, Item, Point, Run, Steps

FOLDER = "mlruns"
_STATUS = {"succeeded": "FINISHED", "failed": "FAILED", "stopped": "KILLED"}
_NOT_IN_A_NAME = re.compile(r"[^\w\-. :/]")


def uri_of(place: str) -> str:
    """Return where to write: a folder where neither the place nor the environment says more."""
    return place or os.environ.get("MLFLOW_TRACKING_URI", "") or FOLDER


class MLflow:
    """One run of an experiment."""

    def __init__(self, place: str, run: Run) -> None:
        uri = uri_of(place)
        if "://" not in uri or uri.startswith("file:"):
            os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")
        mlflow = importlib.import_module("mlflow")
        self._metric = importlib.import_module("mlflow.entities").Metric
        self._client = mlflow.MlflowClient(tracking_uri=uri)
        self._id = os.environ.get("MLFLOW_RUN_ID") or self._created(run)
        self._steps = Steps()

    def _created(self, run: Run) -> str:
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME") or "Default"
        found = self._client.get_experiment_by_name(name)
        experiment = self._client.create_experiment(name) if found is None else found.experiment_id
        made = self._client.create_run(experiment, run_name=run.title or run.name, tags={"hvd.run": run.id})
        return str(made.info.run_id)

    def log(self, point: Point) -> None:
        """Send one batch."""
        at = int(point.time * 1000)
        metrics = [
            self._metric(_NOT_IN_A_NAME.sub("_", name), value, at, self._steps.of(name, point.step))
            for name, value in point.values.items()
        ]
        self._client.log_batch(self._id, metrics=metrics)

    def keep(self, item: Item) -> None:
        """Copy the file or folder to the run's artifacts; a model to ``model/``."""
        send = self._client.log_artifacts if item.path.is_dir() else self._client.log_artifact
        send(self._id, str(item.path), MODEL if item.kind == MODEL else None)

    def note(self, what: str, values: Mapping[str, Any]) -> None:
        """Add inputs as parameters, everything else as tags."""
        for name, value in values.items():
            if what == "inputs":
                self._client.log_param(self._id, name, value)
            else:
                self._client.set_tag(self._id, f"{what}.{name}", value)

    def end(self, status: str) -> None:
        """Close the run."""
        self._client.set_terminated(self._id, _STATUS.get(status, "FINISHED"))
