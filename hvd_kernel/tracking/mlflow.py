"""MLflow, through its package: ``pip install mlflow-skinny``. The default URI is MLFLOW_TRACKING_URI.

MLflow 3 refuses a file store (``mlflow:mlruns``) unless MLFLOW_ALLOW_FILE_STORE=true, which this sink sets for one.
MLFLOW_EXPERIMENT_NAME names the experiment, MLFLOW_RUN_ID a run to continue.
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
    """Return the tracking URI: the place, MLFLOW_TRACKING_URI, or the default folder."""
    return place or os.environ.get("MLFLOW_TRACKING_URI", "") or FOLDER


class MLflow:
    """Sink that writes a run of an MLflow experiment."""

    def __init__(self, place: str, run: Run) -> None:
        uri = uri_of(place)
        if "://" not in uri or uri.startswith("file:"):
            os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")
        mlflow = importlib.import_module("mlflow")
        self._metric = importlib.import_module("mlflow.entities").Metric
        self._client = mlflow.MlflowClient(tracking_uri=uri)
        self._id = os.environ.get("MLFLOW_RUN_ID") or self._create(run)
        self._steps = Steps()

    def _create(self, run: Run) -> str:
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME") or "Default"
        experiment_of_name = self._client.get_experiment_by_name(name)
        experiment = (
            self._client.create_experiment(name) if experiment_of_name is None else experiment_of_name.experiment_id
        )
        created = self._client.create_run(experiment, run_name=run.title or run.name, tags={"hvd.run": run.id})
        return str(created.info.run_id)

    def log(self, point: Point) -> None:
        """Send values as a batch."""
        milliseconds = int(point.time * 1000)
        metrics = [
            self._metric(_NOT_IN_A_NAME.sub("_", name), value, milliseconds, self._steps.of(name, point.step))
            for name, value in point.values.items()
        ]
        self._client.log_batch(self._id, metrics=metrics)

    def keep(self, item: Item) -> None:
        """Copy the file or folder to the run's artifacts; a model to ``model/``."""
        send = self._client.log_artifacts if item.path.is_dir() else self._client.log_artifact
        send(self._id, str(item.path), MODEL if item.kind == MODEL else None)

    def annotate(self, category: str, values: Mapping[str, Any]) -> None:
        """Add inputs as parameters, everything else as tags."""
        for name, value in values.items():
            if category == "inputs":
                self._client.log_param(self._id, name, value)
            else:
                self._client.set_tag(self._id, f"{category}.{name}", value)

    def end(self, status: str) -> None:
        """Close the run."""
        self._client.set_terminated(self._id, _STATUS.get(status, "FINISHED"))
