"""accelerate, Hugging Face's Trainer and Lightning under hvdrun, as written for torchrun: the ranks train one model."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hvdtest.cluster import cluster, execute
from hvdtest.hvdrun import good, hvdrun

pytestmark = [pytest.mark.nightly, pytest.mark.mp, pytest.mark.timeout(400)]

HEAD = """
import json, os, sys, torch
torch.set_num_threads(1)
x = (torch.arange(64.0).reshape(32, 2) * 7) % 5 - 2
y = x[:, 0] - x[:, 1]
data = torch.utils.data.TensorDataset(x, y)
def show(world, steps, model):
    with open(f"{FOLDER}/{os.environ['RANK']}", "w") as file:
        json.dump([world, steps, [parameter.tolist() for parameter in model.parameters()]], file)
"""
ACCELERATE = """
from accelerate import Accelerator
accelerator, model, steps = Accelerator(cpu=True), torch.nn.Linear(2, 1), 0
loader = torch.utils.data.DataLoader(data, batch_size=4)
model, optimizer, loader = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1), loader)
for inputs, targets in loader:
    optimizer.zero_grad()
    accelerator.backward(((model(inputs)[:, 0] - targets) ** 2).mean())
    optimizer.step()
    steps += 1
show(accelerator.num_processes, steps, model)
"""
TRAINER = """
from transformers import Trainer, TrainingArguments
class Line(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.net = torch.nn.Linear(2, 1)
    def forward(self, x, labels):
        return {"loss": ((self.net(x)[:, 0] - labels) ** 2).mean()}
args = TrainingArguments(output_dir=FOLDER + "/out", per_device_train_batch_size=4, num_train_epochs=1,
    learning_rate=0.1, report_to="none", use_cpu=True, disable_tqdm=True, save_strategy="no")
rows = [{"x": inputs, "labels": target} for inputs, target in zip(x, y)]
trainer = Trainer(model=Line(), args=args, train_dataset=rows)
done = trainer.train()
show(args.world_size, done.global_step, trainer.model)
"""
LIGHTNING = """
import lightning
class Line(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = torch.nn.Linear(2, 1)
    def training_step(self, batch, _):
        return ((self.net(batch[0])[:, 0] - batch[1]) ** 2).mean()
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)
trainer = lightning.Trainer(strategy="ddp", accelerator="cpu", devices=2, max_epochs=1, default_root_dir=FOLDER,
    enable_progress_bar=False, enable_model_summary=False, logger=False, enable_checkpointing=False)
model = Line()
trainer.fit(model, torch.utils.data.DataLoader(data, batch_size=4))
show(trainer.world_size, trainer.global_step, model)
"""


@pytest.mark.parametrize(
    ("package", "script"),
    [("accelerate", ACCELERATE), ("transformers", TRAINER), ("lightning", LIGHTNING)],
    ids=["accelerate", "transformers", "lightning"],
)
def test_ranks_train_one_model(package: str, script: str, tmp_path: Path) -> None:
    pytest.importorskip(package)
    good(hvdrun("-np", "2", script=f"FOLDER = {str(tmp_path)!r}\n{HEAD}{script}"))
    first, second = (json.loads((tmp_path / f"{rank}").read_text()) for rank in range(2))
    assert first == second
    assert first[:2] == [2, 4]  # each rank half of the eight batches


COUNTED = """
from accelerate import Accelerator
accelerator = Accelerator(cpu=True)
print(accelerator.num_processes, accelerator.process_index, accelerator.use_distributed)
"""


@pytest.mark.jupyter
def test_accelerate_in_independent_cells() -> None:
    """An independent cell got the ranks that mpiexec or an earlier cell had numbered, and left its own to the next one."""
    pytest.importorskip("accelerate")
    alone, together = dict.fromkeys(range(2), "1 0 False\n"), {0: "2 0 True\n", 1: "2 1 True\n"}
    with cluster(2) as session:
        for independent in (True, False, True, False):
            done = execute(session, COUNTED, independent=independent)
            assert done.text() == (alone if independent else together), done.failures
