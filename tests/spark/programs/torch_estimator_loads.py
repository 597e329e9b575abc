"""Another process loads the saved result of a fit."""

from typing import TYPE_CHECKING

from pyspark.ml import PipelineModel

if TYPE_CHECKING:
    from driver_cases import report_cases
    from spark_session import session
    from torch_line import values

spark = session("local[2]")
plain = spark.createDataFrame(values(), ["a", "b", "y"])


def loaded():
    made = PipelineModel.load("pipeline")
    rows = made.transform(plain).orderBy("a", "b").limit(3).collect()
    return [[row["a"], row["b"], row["y__output"]] for row in rows]


def kept():
    model = PipelineModel.load("pipeline").stages[-1]
    return [
        model.getRunId(),
        len(model.getHistory()),
        model.getOptimizer().param_groups[0]["lr"],
        model.getMetadata()["x"].kind,
    ]


report_cases(loaded, kept)
