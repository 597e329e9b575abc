"""The guard against training apart beside the libraries that train: silent with our integration, a warning without."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from hvdtest.launch import RankPool
from hvdtest.pools import layouts

from hvd_kernel.diagnosis.training_apart import warning_of
from hvd_kernel.protocol.messages import OptimizerSteps, ParameterDigest
from hvd_kernel.protocol.training_apart import nothing_exchanged

pytestmark = [pytest.mark.nightly, pytest.mark.mp, pytest.mark.timeout(400)]

layout = layouts((2, "shm"))

STEPS = 20
QUIET = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False, "enable_checkpointing": False}


def accelerate(together: bool, _folder: str) -> None:
    import torch

    import hvd_kernel.torch as hvd

    accelerator = import_module("accelerate").Accelerator(cpu=True)
    model = torch.nn.Linear(8, 8)
    optimizer: Any = torch.optim.SGD(model.parameters(), lr=0.01)
    if together:
        hvd.broadcast_parameters(model.state_dict(), 0)
        optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    model, optimizer = accelerator.prepare(model, optimizer)
    for _ in range(STEPS):
        optimizer.zero_grad()
        accelerator.backward(model(torch.randn(4, 8)).pow(2).mean())
        optimizer.step()


def transformers(together: bool, folder: str) -> None:
    import torch

    library = import_module("transformers")
    ours = import_module("hvd_kernel.integrations.transformers")

    class Line(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = torch.nn.Linear(8, 8)

        def forward(self, x: Any) -> dict[str, Any]:
            return {"loss": self.net(x).pow(2).mean()}

    args = (ours.HorovodTrainingArguments if together else library.TrainingArguments)(
        output_dir=folder,
        per_device_train_batch_size=4,
        max_steps=STEPS,
        report_to="none",
        save_strategy="no",
        disable_tqdm=True,
        use_cpu=True,
    )
    rows = [{"x": torch.randn(8)} for _ in range(64)]
    (ours.HorovodTrainer if together else library.Trainer)(model=Line(), args=args, train_dataset=rows).train()


def lightning(together: bool, folder: str) -> None:
    import torch

    library = import_module("lightning")

    class Line(library.LightningModule):  # type: ignore[name-defined, misc]
        def __init__(self) -> None:
            super().__init__()
            self.net = torch.nn.Linear(8, 8)

        def training_step(self, batch: Any, _number: int) -> Any:
            return self.net(batch).pow(2).mean()

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.01)

    ours: dict[str, Any] = {"devices": 1, "strategy": "auto"}
    if together:
        ours = {"strategy": import_module("hvd_kernel.integrations.lightning").HorovodStrategy()}
    rows = torch.utils.data.DataLoader([torch.randn(8) for _ in range(STEPS * 8)], batch_size=4)
    trainer = library.Trainer(**QUIET, **ours, accelerator="cpu", max_steps=STEPS, default_root_dir=folder)
    trainer.fit(Line(), rows)


LIBRARIES = {function.__name__: function for function in (accelerate, transformers, lightning)}


def trained(library: str, together: bool, folder: str) -> list[Any]:
    import torch

    import hvd_kernel.torch as hvd
    from hvd_kernel.core import training_steps

    hvd.init()
    torch.manual_seed(hvd.rank())
    training_steps._run = 0  # earlier tests of these ranks have exchanged gradients
    training_steps.begin_cell()
    LIBRARIES[library](together, folder)
    return [*training_steps.reports()]


@pytest.mark.parametrize("together", [True, False], ids=["together", "apart"])
@pytest.mark.parametrize("library", LIBRARIES)
def test_library_is_warned_unless_its_ranks_train_together(
    ranks: RankPool, tmp_path: Path, library: str, together: bool
) -> None:
    pytest.importorskip(library)
    found = ranks.run(trained, library, together, str(tmp_path))
    reports = {
        rank: [
            OptimizerSteps(*row)._replace(digests=tuple(ParameterDigest(*digest) for digest in row[-1])) for row in rows
        ]
        for rank, rows in enumerate(found)
    }
    assert [steps.steps for rows in reports.values() for steps in rows] == [STEPS] * 2
    assert warning_of(reports, frozenset(reports)) == ("" if together else nothing_exchanged("ranks 0-1", STEPS))
