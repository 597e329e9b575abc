"""Estimators of Keras and Lightning."""

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from driver_cases import report_cases
    from spark_session import session

os.environ["KERAS_BACKEND"] = "torch"
from pathlib import Path

import keras
import lightning.pytorch as lightning
import torch

from hvd_kernel import compat

compat.install()
from horovod.keras.callbacks import BestModelCheckpoint
from horovod.spark.common.backend import Backend
from horovod.spark.common.store import Store
from horovod.spark.keras import KerasEstimator
from horovod.spark.lightning import TorchEstimator, TorchModel
from pyspark.ml import Pipeline, PipelineModel
from pyspark.ml.feature import VectorAssembler

ROWS = 16
spark = session("local[2]")
plain = spark.createDataFrame([(n % 4 / 4, n % 8 / 8 - 0.5, n % 4 / 2 + 0.25) for n in range(ROWS)], ["a", "b", "y"])
assembler = VectorAssembler(inputCols=["a", "b"], outputCol="x")
frame = assembler.transform(plain).cache()
store = Store.create(str(Path.cwd() / "store"))


class Here(Backend):
    def run(self, fn, args=(), kwargs=None, env=None):
        return [fn(*args, **(kwargs or {}))]

    def num_processes(self):
        return 1


def by_hand(rate, epochs):
    net = torch.nn.Linear(2, 1)
    torch.nn.init.constant_(net.weight, 0.5)
    torch.nn.init.constant_(net.bias, 0.25)
    optimizer = torch.optim.SGD(net.parameters(), lr=rate)
    rows = torch.tensor([[row["a"], row["b"], row["y"]] for row in plain.collect()])
    for _ in range(epochs):
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(net(rows[:, :2]), rows[:, 2:]).backward()
        optimizer.step()
    return [*net.weight.flatten().tolist(), net.bias.item()]


def dense():
    start = {
        "kernel_initializer": keras.initializers.Constant(0.5),
        "bias_initializer": keras.initializers.Constant(0.25),
    }
    return keras.Sequential([keras.Input((2,)), keras.layers.Dense(1, **start)])


def of_keras(**more):
    given = {
        "store": store,
        "model": dense(),
        "optimizer": keras.optimizers.SGD(0.125),
        "loss": "mse",
        "feature_cols": ["x"],
        "label_cols": ["y"],
        "batch_size": ROWS,
        "shuffle": False,
        "verbose": 0,
    }
    return KerasEstimator(**{**given, **more})


def flat(model):
    return [float(number) for each in model.get_weights() for number in each.flatten()]


def keras_two_ranks():
    made = Pipeline(stages=[assembler, of_keras(num_proc=2, epochs=2, run_id="keras")]).fit(plain)
    made.write().overwrite().save("keras_pipeline")
    back = PipelineModel.load("keras_pipeline")
    model, again = made.stages[-1], back.stages[-1]
    first = [[row["y__output"] for row in each.transform(plain).collect()] for each in (made, back)]
    return {
        "same": flat(model.getModel()) == by_hand(0.25, 2),
        "history": {name: len(values) for name, values in model.getHistory().items()},
        "rate": float(model.getModel().optimizer.learning_rate.numpy()),
        "files": sorted(
            str(each.relative_to("store/runs")) for each in Path("store/runs").rglob("*") if each.is_file()
        ),
        "back": [
            first[0] == first[1],
            len(first[0]),
            again.getRunId(),
            flat(again.getModel()) == flat(model.getModel()),
        ],
    }


def keras_goes_on():
    of_keras(backend=Here(), run_id="again").fit(frame)
    return flat(of_keras(backend=Here(), epochs=2, run_id="again").fit(frame).getModel()) == by_hand(0.125, 3)


def keras_best():
    made = of_keras(
        backend=Here(),
        epochs=3,
        optimizer=keras.optimizers.SGD(4.0),
        run_id="best",
        checkpoint_callback=BestModelCheckpoint(monitor="loss"),
        metrics=["mae"],
    ).fit(frame)
    last = of_keras(backend=Here(), epochs=3, optimizer=keras.optimizers.SGD(4.0)).fit(frame)
    losses = made.getHistory()["loss"]
    return [
        losses == sorted(losses),
        flat(made.getModel()) != flat(last.getModel()),
        sorted(made.getHistory()),
        Path("store/runs/best/checkpoint.best").exists(),
    ]


def keras_custom():
    @keras.saving.register_keras_serializable("tests")
    class Twice(keras.layers.Layer):
        def call(self, x):
            return 2 * x

    model = keras.Sequential([keras.Input((2,)), Twice(), keras.layers.Dense(2)])
    made = of_keras(
        backend=Here(),
        model=model,
        custom_objects={"Twice": Twice},
        label_cols=["x"],
        loss=lambda wanted, given: keras.ops.mean(keras.ops.square(wanted - given)),
        validation="held",
    ).fit(frame.selectExpr("*", "b > 0 as held"))
    return [type(made.transform(frame).first()["x__output"]).__name__, sorted(made.getHistory())]


def keras_saved():
    est = of_keras(num_proc=2, optimizer=keras.optimizers.Adam(0.5))
    est.write().overwrite().save("keras_estimator")
    back = KerasEstimator.load("keras_estimator")
    return [
        back.getNumProc(),
        back.getStore() == store,
        float(back.getOptimizer().learning_rate.numpy()),
        flat(back.getModel()) == flat(est.getModel()),
    ]


def no_loss():
    KerasEstimator(backend=Here(), store=store, model=dense(), label_cols=["y"]).fit(frame)


def no_optimizer():
    KerasEstimator(backend=Here(), store=store, model=dense(), label_cols=["y"], loss="mse").fit(frame)


def no_keras_model():
    of_keras(backend=Here(), model=torch.nn.Linear(1, 1)).fit(frame)


class Line(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = torch.nn.Linear(2, 1)
        torch.nn.init.constant_(self.net.weight, 0.5)
        torch.nn.init.constant_(self.net.bias, 0.25)

    def forward(self, x):
        return self.net(x)

    def training_step(self, batch, number):
        loss = torch.nn.functional.mse_loss(self(batch["x"]).flatten(), batch["y"])
        self.log("loss", loss)
        return loss

    def validation_step(self, batch, number):
        self.log("val_loss", torch.nn.functional.mse_loss(self(batch["x"]).flatten(), batch["y"]))

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.25)


def of_lightning(**more):
    given = {
        "store": store,
        "model": Line(),
        "feature_cols": ["x"],
        "label_cols": ["y"],
        "batch_size": ROWS,
        "shuffle": False,
        "verbose": 0,
        "use_gpu": False,
    }
    return TorchEstimator(**{**given, **more})


def numbers(module):
    return [*module.net.weight.flatten().tolist(), module.net.bias.item()]


def lightning_two_ranks():
    made = of_lightning(num_proc=2, epochs=2, run_id="light").fit(frame)
    made.write().overwrite().save("light")
    back = TorchModel.load("light")
    rows = [[row["y__output"] for row in each.transform(frame).collect()] for each in (made, back)]
    return [
        numbers(made.getModel()) == by_hand(0.25, 2),
        [sorted(each) for each in made.getHistory()],
        Path("store/runs/light/checkpoint").exists(),
        rows[0] == rows[1],
        len(rows[0]),
    ]


def lightning_goes_on():
    of_lightning(backend=Here(), run_id="on").fit(frame)
    made = of_lightning(backend=Here(), epochs=2, run_id="on").fit(frame)
    return [numbers(made.getModel()) == by_hand(0.25, 3), [each["epoch"] for each in made.getHistory()]]


def lightning_validates():
    told = of_lightning(backend=Here(), validation="held").fit(frame.selectExpr("*", "b > 0 as held")).getHistory()
    return [sorted(each) for each in told]


def legacy():
    net = torch.nn.Linear(2, 1)
    torch.nn.init.constant_(net.weight, 0.5)
    torch.nn.init.constant_(net.bias, 0.25)
    estimator = of_lightning(
        model=net, optimizer=torch.optim.SGD(net.parameters(), lr=0.25), loss=torch.nn.functional.mse_loss
    )
    estimator.write().overwrite().save("legacy")
    found = []
    for each in (estimator, TorchEstimator.load("legacy")):
        model = each.setBackend(Here()).fit(frame).getModel()
        found.append([*model.weight.flatten().tolist(), model.bias.item()] == by_hand(0.25, 1))
    return found


def nan_ends():
    class Bad(Line):
        def training_step(self, batch, number):
            return super().training_step(batch, number) * float("nan")

    of_lightning(backend=Here(), model=Bad(), terminate_on_nan=True).fit(frame)


def two_optimizers():
    of_lightning(backend=Here(), optimizer=torch.optim.SGD(Line().parameters(), lr=1)).fit(frame)


report_cases(
    keras_two_ranks,
    keras_goes_on,
    keras_best,
    keras_custom,
    keras_saved,
    no_loss,
    no_optimizer,
    no_keras_model,
    lightning_two_ranks,
    lightning_goes_on,
    lightning_validates,
    legacy,
    nan_ends,
    two_optimizers,
)
