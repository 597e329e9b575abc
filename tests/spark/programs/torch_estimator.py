"""``TorchEstimator``: fits, parameters, metrics, callbacks."""

from pathlib import Path
from typing import TYPE_CHECKING

import torch
from horovod.spark.common.backend import SparkBackend
from horovod.spark.torch import TorchEstimator
from pyspark.ml import Pipeline
from pyspark.ml.feature import VectorAssembler

if TYPE_CHECKING:
    from driver_cases import report_cases
    from spark_session import session
    from torch_line import ROWS, Here, Line, by_hand, estimator, values, weights

spark = session("local[2]")
plain = spark.createDataFrame(values(), ["a", "b", "y"])
assembler = VectorAssembler(inputCols=["a", "b"], outputCol="x")
frame = assembler.transform(plain).cache()


def two_ranks():
    made = Pipeline(stages=[assembler, estimator(num_proc=2, epochs=2, run_id="two")]).fit(plain)
    made.write().overwrite().save("pipeline")
    model = made.stages[-1]
    rows = made.transform(plain).orderBy("a", "b").limit(3).collect()
    return {
        "same": weights(model.getModel()) == by_hand(0.25, 2),
        "rate": model.getOptimizer().param_groups[0]["lr"],
        "history": [[each["epoch"], sorted(each), sorted(each["train"])] for each in model.getHistory()],
        "run": model.getRunId(),
        "first": [[row["a"], row["b"], row["y__output"]] for row in rows],
        "files": sorted(
            str(each.relative_to("store/runs")) for each in Path("store/runs").rglob("*") if each.is_file()
        ),
    }


def goes_on():
    first = estimator(backend=Here(), epochs=1, run_id="again").fit(frame)
    second = estimator(backend=Here(), epochs=2, run_id="again").fit(frame)
    return weights(first.getModel()) == by_hand(0.125, 1) and weights(second.getModel()) == by_hand(0.125, 3)


def splits():
    flagged = frame.selectExpr("*", "b > 0 as held")
    made = estimator(backend=Here(), validation="held", metrics=[[torch.nn.functional.l1_loss]]).fit(flagged)
    told = made.getHistory()[0]
    counts = [
        estimator(backend=Here(), validation=0.25, random_seed=1).fit(frame).getHistory()[0].keys() >= {"validation"}
    ]
    return [sorted(told), sorted(told["validation"]), list(told["train"]["all_metrics"][0]), counts]


def best():
    made = [
        estimator(
            backend=Here(),
            epochs=3,
            best_checkpoint=flag,
            validation="held",
            run_id=f"best{flag}",
            optimizer=torch.optim.SGD((net := Line()).parameters(), lr=4.0),
            model=net,
        ).fit(frame.selectExpr("*", "b > 0 as held"))
        for flag in (False, True)
    ]
    losses = [each["validation"]["loss"] for each in made[1].getHistory()]
    return [
        losses == sorted(losses),
        weights(made[0].getModel()) != weights(made[1].getModel()),
        Path("store/runs/bestTrue/checkpoint.best").exists(),
        Path("store/runs/bestFalse/checkpoint.best").exists(),
    ]


def row_weights():
    weighted = frame.selectExpr("*", "case when b < 0 then 2.0 else 0.0 end as w")
    made = estimator(backend=Here(), sample_weight_col="w").fit(weighted)
    only = estimator(backend=Here()).fit(frame.filter("b < 0"))
    module = estimator(backend=Here(), sample_weight_col="w", loss=torch.nn.MSELoss()).fit(weighted)
    assert frame.filter("b < 0").count() == ROWS / 2  # a row in two has the weight 2: the mean is theirs
    return [
        weights(made.getModel()) == weights(only.getModel()),
        weights(module.getModel()) == weights(made.getModel()),
    ]


def own_minibatch():
    seen = []

    def minibatch(model, optimizer, transform_outputs, loss_fn, inputs, labels, sample_weights):  # noqa: PLR0917 - as Horovod calls it
        outputs, labels = transform_outputs(model(*inputs), labels)
        seen.append([tuple(inputs[0].shape), tuple(labels[0].shape), sample_weights])
        return outputs, loss_fn(outputs, labels, sample_weights)

    estimator(backend=Here(), train_minibatch_fn=minibatch, batch_size=12).fit(frame)
    return seen


def transformed():
    def change(rows):
        rows["y"] = rows["y"] * 0
        return rows

    made = estimator(backend=Here(), transformation_fn=change).fit(frame)
    zero = estimator(backend=Here()).fit(frame.selectExpr("x", "y * 0 as y"))
    return weights(made.getModel()) == weights(zero.getModel())


def data_module():
    from horovod.spark.common.datamodule import DataModule

    told = {}

    class Mine(DataModule):
        short_name = "mine"

        def __enter__(self):
            told.update(
                shard=[self.cur_shard, self.shard_count],
                fields=list(self.schema_fields),
                steps=self.steps_per_epoch_train,
                exists=Path(self.train_dir.removeprefix("file://")).exists(),
            )
            return self

        def train_data(self):
            rows = torch.tensor(values())
            while True:
                yield {"x": rows[:, :2], "y": rows[:, 2]}

        def val_data(self):
            return iter(())

    Mine.register()
    made = estimator(backend=Here(), data_module="mine").fit(frame)
    return [told, weights(made.getModel()) == by_hand(0.125, 1)]


def parquet():
    estimator(backend=Here()).fit(frame)
    made = estimator(backend=Here()).fit_on_parquet(dataset_idx=0)
    return [weights(made.getModel()) == by_hand(0.125, 1), made.getMetadata()["x"].kind]


def outputs():
    whole = estimator(backend=Here()).fit(frame.selectExpr("x", "cast(y as int) as y")).transform(frame)
    several = (
        estimator(backend=Here(), model=Line(3), train_steps_per_epoch=1, loss=lambda output, label: output.sum() * 0)
        .fit(frame)
        .transform(frame)
    )
    vector = estimator(backend=Here(), model=Line(2), label_cols=["x"], feature_cols=["x"]).fit(frame).transform(frame)
    renamed = estimator(backend=Here()).fit(frame).setOutputCols(["guess"]).transform(frame)
    return [
        whole.schema["y__output"].dataType.typeName(),
        type(several.first()["y__output"]).__name__,
        len(several.first()["y__output"]),
        type(vector.first()["x__output"]).__name__,
        renamed.columns,
    ]


def twice():
    made = estimator(backend=Here()).fit(frame)
    return made.transform(made.transform(frame)).count()


def searched():
    from pyspark.ml.evaluation import RegressionEvaluator
    from pyspark.ml.tuning import CrossValidator, ParamGridBuilder

    est = estimator(backend=Here(), shuffle=True, batch_size=8)
    grid = ParamGridBuilder().addGrid(est.epochs, [1, 6]).build()
    judge = RegressionEvaluator(predictionCol="y__output", labelCol="y", metricName="rmse")
    folds = frame.selectExpr("*", "0 as fold").union(frame.selectExpr("*", "1 as fold"))  # each has all rows
    found = CrossValidator(estimator=est, estimatorParamMaps=grid, evaluator=judge, numFolds=2, foldCol="fold").fit(
        folds
    )
    return [len(found.avgMetrics), bool(found.avgMetrics[1] < found.avgMetrics[0]), len(found.bestModel.getHistory())]


def saved_estimator():
    est = estimator(backend=SparkBackend(2, start_timeout=77), epochs=4)
    est.write().overwrite().save("estimator")
    back = TorchEstimator.load("estimator")
    own = {id(each) for each in back.getModel().parameters()}
    return [
        back.uid == est.uid,
        back.getEpochs(),
        back.getStore() == est.getStore(),
        back.getBackend().description(),
        {id(each) for group in back.getOptimizer().param_groups for each in group["params"]} == own,
        back.getLoss() is torch.nn.functional.mse_loss,
    ]


def no_column():
    estimator(backend=Here(), label_cols=["z"]).fit(frame)


def no_feature():
    estimator(backend=Here(), feature_cols=["q"]).fit(frame)


def no_labels():
    estimator(backend=Here(), label_cols=None).fit(frame)


def bad_split():
    estimator(backend=Here(), validation=1.5).fit(frame)


def empty_split():
    estimator(backend=Here(), validation="held").fit(frame.selectExpr("*", "false as held"))


def no_model():
    TorchEstimator(backend=Here()).fit(frame)


def no_store():
    TorchEstimator(
        backend=Here(), model=Line(), optimizer=torch.optim.SGD(Line().parameters(), lr=1), loss=len, label_cols=["y"]
    ).fit(frame)


def two_sizes():
    estimator(backend=Here(), num_proc=2).fit(frame)


def no_files():
    estimator(backend=Here(), partitions_per_process=0).fit(frame)


def both_losses():
    estimator(loss_constructors=[len])


def unknown():
    estimator(epoch=1)


def lists_differ():
    rows = spark.createDataFrame([([1.0, 2.0], 1.0), ([1.0], 2.0)], ["x", "y"]).coalesce(1)
    estimator(backend=Here()).fit(rows)


report_cases(
    two_ranks,
    goes_on,
    splits,
    best,
    row_weights,
    own_minibatch,
    transformed,
    data_module,
    parquet,
    outputs,
    twice,
    searched,
    saved_estimator,
    no_column,
    no_feature,
    no_labels,
    bad_split,
    empty_split,
    no_model,
    no_store,
    two_sizes,
    no_files,
    both_losses,
    unknown,
    lists_differ,
)
