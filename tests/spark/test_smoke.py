"""Spark, end to end: a DataFrame, a fit on two ranks that are tasks, predictions.

The default tier's only test of Spark: the first one to run makes the environment.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from hvdtest.spark_driver import outcomes
from hvdtest.torch_estimator import ESTIMATOR

SCRIPT = (
    ESTIMATOR
    + """
def fits():
    spark = session("local[2]", spark_sql_shuffle_partitions="2")
    frame = VectorAssembler(inputCols=["a", "b"], outputCol="x").transform(spark.createDataFrame(values(), ["a", "b", "y"]))
    fitted = estimator(num_proc=2, epochs=2).fit(frame)
    slope, offset = weights(fitted.getModel())
    rows = fitted.transform(frame).collect()
    told = [row["y__output"] == slope[0] * row["a"] + slope[1] * row["b"] + offset[0] for row in rows]
    return [weights(fitted.getModel()) == by_hand(0.25, 2), told]

tell(fits)
"""
)


@pytest.mark.mp
@pytest.mark.timeout(600)
@pytest.mark.skipif(shutil.which("java") is None, reason="Java is missing: bash .ci/system java installs it")
def test_a_fit_on_two_ranks_is_to_the_bit_that_of_one_process(tmp_path: Path) -> None:
    assert outcomes(SCRIPT, tmp_path)["fits"] == [True, [True] * 16]
