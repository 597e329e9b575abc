"""A fit on two ranks that are tasks, and predictions."""

from typing import TYPE_CHECKING

from pyspark.ml.feature import VectorAssembler

if TYPE_CHECKING:
    from driver_cases import report_cases
    from spark_session import session
    from torch_line import by_hand, estimator, values, weights


def fits():
    spark = session("local[2]", spark_sql_shuffle_partitions="2")
    frame = VectorAssembler(inputCols=["a", "b"], outputCol="x").transform(
        spark.createDataFrame(values(), ["a", "b", "y"])
    )
    fitted = estimator(num_proc=2, epochs=2).fit(frame)
    slope, offset = weights(fitted.getModel())
    rows = fitted.transform(frame).collect()
    told = [row["y__output"] == slope[0] * row["a"] + slope[1] * row["b"] + offset[0] for row in rows]
    return [weights(fitted.getModel()) == by_hand(0.25, 2), told]


report_cases(fits)
