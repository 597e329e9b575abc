"""``TorchEstimator`` for a line; sums are exact, so two ranks train bit for bit like one process."""

from pathlib import Path

import torch

from hvd_kernel import compat

compat.install()
from horovod.spark.common.backend import Backend
from horovod.spark.common.store import Store
from horovod.spark.torch import TorchEstimator

ROWS = 16


class Here(Backend):
    """One rank: this process."""

    def run(self, fn, args=(), kwargs=None, env=None):
        return [fn(*args, **(kwargs or {}))]

    def num_processes(self):
        return 1


class Line(torch.nn.Module):
    def __init__(self, outputs=1):
        super().__init__()
        self.net = torch.nn.Linear(2, outputs)
        torch.nn.init.constant_(self.net.weight, 0.5)
        torch.nn.init.constant_(self.net.bias, 0.25)

    def forward(self, x):
        return self.net(x)


def values():
    return [(n % 4 / 4, n % 8 / 8 - 0.5, n % 4 / 2 + 0.25) for n in range(ROWS)]


def estimator(**more):
    model = more.pop("model", None) or Line()
    given = {
        "store": Store.create(str(Path.cwd() / "store")),
        "model": model,
        "optimizer": torch.optim.SGD(model.parameters(), lr=0.125),
        "loss": torch.nn.functional.mse_loss,
        "feature_cols": ["x"],
        "label_cols": ["y"],
        "batch_size": ROWS,
        "shuffle": False,
        "verbose": 0,
    }
    return TorchEstimator(**{**given, **more})


def weights(model):
    return [each.detach().flatten().tolist() for each in model.parameters()]


def by_hand(rate, epochs, parts=1):
    model = Line()
    optimizer = torch.optim.SGD(model.parameters(), lr=rate)
    rows = torch.tensor(values())
    for _ in range(epochs):
        for part in rows.chunk(parts):
            optimizer.zero_grad()
            torch.nn.functional.mse_loss(model(part[:, :2]), part[:, 2:]).backward()
            optimizer.step()
    return weights(model)
