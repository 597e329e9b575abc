"""Messages and settings of ``hvd_kernel.spark`` without a Spark."""

from __future__ import annotations

import re
from types import SimpleNamespace

import pytest

from hvd_kernel import spark
from hvd_kernel.errors import ConfigError, UsageError
from hvd_kernel.formatting.install_command import install_command
from hvd_kernel.spark import stage, task
from hvd_kernel.spark.runner import start_seconds


def test_without_pyspark_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "pyspark", None)
    for run in (spark.run, spark.run_elastic):
        with pytest.raises(UsageError, match=re.escape(f"hvd_kernel.spark needs PySpark: {install_command('spark')}.")):
            run(print)


def test_run_accepts_one_function() -> None:
    with pytest.raises(TypeError, match=r"^run\(\) calls a function on the ranks, but got 3\.$"):
        spark.run(3)


def test_start_timeout_is_argument_then_variable_then_600_s(monkeypatch: pytest.MonkeyPatch) -> None:
    assert start_seconds(None) == 600.0
    monkeypatch.setenv("HOROVOD_SPARK_START_TIMEOUT", "40")
    assert (start_seconds(None), start_seconds(5)) == (40.0, 5.0)
    monkeypatch.setenv("HOROVOD_SPARK_START_TIMEOUT", "soon")
    with pytest.raises(ConfigError, match=r"^start_timeout=soon: write the seconds that Spark may take, e\.g\. 600\.$"):
        start_seconds(None)


def test_devices_are_those_of_the_task_or_of_the_local_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    assert task.variables({}) == {}
    results = task.variables({"gpu": SimpleNamespace(addresses=["2", "5"])})
    monkeypatch.setenv(*next(iter(results.items())))
    assert task.get_available_devices() == ["2", "5"]
    monkeypatch.setenv("HOROVOD_SPARK_USE_LOCAL_RANK_GPU_INDEX", "1")
    assert task.get_available_devices() == []


def test_jvm_errors_are_shown_as_one_sentence() -> None:
    text = (
        "org.apache.spark.SparkException: Job aborted due to stage failure: Could not recover from a failed barrier\n"
        "  File worker.py, line 3, in main\n"
        "ModuleNotFoundError: No module named 'hvd_kernel'\n"
        "\tat org.apache.spark.api.python.Runner.read(Runner.scala:1)"
    )
    assert stage.error_message(ValueError(text)) == "ModuleNotFoundError: No module named 'hvd_kernel'"
    said = "An error occurred while calling collect.\n: org.apache.spark.SparkException: [SPARK-24942]: Barrier\n\tat x"
    assert stage.error_message(ValueError(said)) == "[SPARK-24942]: Barrier"
