"""Lightning, Hugging Face's Trainer and Ignite as their users start them: hvdrun, mpirun, torchrun, and a cell."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from hvdtest.hvdrun import HVDRUN, good, ran
from hvdtest.kernel import Kernel

pytestmark = [pytest.mark.nightly, pytest.mark.mp, pytest.mark.timeout(400)]

LIGHTNING = """
import lightning, sys, torch
from hvd_kernel.integrations.lightning import HorovodStrategy

class Line(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = torch.nn.Linear(2, 1)
    def training_step(self, batch, _):
        loss = ((self.net(batch[0])[:, 0] - batch[1]) ** 2).mean()
        self.log("loss", loss, sync_dist=True)
        return loss
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)

torch.set_num_threads(1)
x = (torch.arange(64.0).reshape(32, 2) * 7) % 5 - 2
data = torch.utils.data.TensorDataset(x, x[:, 0] - x[:, 1])
line = Line()
strategy = "horovod" if "by name" in sys.argv else HorovodStrategy()
trainer = lightning.Trainer(strategy=strategy, accelerator="cpu", max_epochs=2, default_root_dir=FOLDER,
    enable_progress_bar=False, enable_model_summary=False)
trainer.fit(line, torch.utils.data.DataLoader(data, batch_size=4))
said = (trainer.world_size, trainer.callback_metrics["loss"].item(), [p.tolist() for p in line.parameters()])
"""
TRAINER = """
import torch
from hvd_kernel.integrations.transformers import HorovodTrainer, HorovodTrainingArguments

class Line(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.net = torch.nn.Linear(2, 1)
    def forward(self, x, labels):
        logits = self.net(x)[:, 0]
        return {"loss": ((logits - labels) ** 2).mean(), "logits": logits}

torch.set_num_threads(1)
x = (torch.arange(64.0).reshape(32, 2) * 7) % 5 - 2
args = HorovodTrainingArguments(output_dir=FOLDER, per_device_train_batch_size=4, num_train_epochs=2, learning_rate=0.1,
    report_to="none", use_cpu=True, disable_tqdm=True, save_strategy="epoch")
trainer = HorovodTrainer(model=Line(), args=args, train_dataset=[{"x": one, "labels": one[0] - one[1]} for one in x])
done = trainer.train()
said = (args.world_size, done.global_step, [p.tolist() for p in trainer.model.parameters()])
"""
IGNITE = """
import sys, torch
import ignite.distributed as idist
from ignite.engine import Engine
from ignite.metrics import Accuracy

def training(local_rank, epochs):
    torch.set_num_threads(1)
    rank, size = idist.get_rank(), idist.get_world_size()
    torch.manual_seed(rank)
    x = (torch.arange(64.0).reshape(32, 2) * 7) % 5 - 2
    data = torch.utils.data.TensorDataset(x, (x[:, 0] > x[:, 1]).long())
    loader = idist.auto_dataloader(data, batch_size=8, shuffle=False)
    model = idist.auto_model(torch.nn.Linear(2, 2))
    optimizer = idist.auto_optim(torch.optim.SGD(model.parameters(), lr=0.1))

    def step(_engine, batch):
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(batch[0]), batch[1])
        loss.backward()
        optimizer.step()
        return loss.item()

    Engine(step).run(loader, max_epochs=epochs)
    evaluator = Engine(lambda _engine, batch: (model(batch[0]), batch[1]))
    Accuracy().attach(evaluator, "accuracy")
    accuracy = evaluator.run(loader).metrics["accuracy"]
    idist.barrier()
    last = size - 1
    assert (idist.backend(), len(loader)) == ("horovod", 32 // 8)
    assert idist.all_gather(rank) == list(range(size)) and idist.all_gather(f"r{rank}") == [f"r{i}" for i in range(size)]
    assert idist.all_reduce(rank + 1.0) == size * (size + 1) / 2 and idist.all_reduce(rank + 1.0, op="MAX") == size
    assert idist.broadcast(torch.tensor([rank + 5.0]), src=last).item() == last + 5.0
    alone = idist.new_group([0])
    assert idist.all_gather(torch.tensor([rank]), group=alone).tolist() == [rank]
    print("said", (size, accuracy, [p.tolist() for p in model.parameters()]), flush=True)

if __name__ == "__main__":
    spawned = {"nproc_per_node": 2} if "spawn" in sys.argv else {}
    with idist.Parallel(backend="horovod", **spawned) as parallel:
        parallel.run(training, 10)
"""
PYTHON = [sys.executable, "-P"]
TORCHRUN = [*PYTHON, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--standalone", "--no-python"]
LAUNCHERS = {"hvdrun": [*HVDRUN, "-np", "2"], "mpirun": [*HVDRUN, "--mpi", "-np", "2"], "torchrun": TORCHRUN}
by_each = pytest.mark.parametrize("launcher", LAUNCHERS)


def program(folder: Path, text: str) -> str:
    (path := folder / "train.py").write_text(f"FOLDER = {str(folder / 'out')!r}\n{text}")
    return str(path)


def said(output: str) -> list[str]:
    """Return the output of the ranks without rank labels."""
    return [line.split("said ", 1)[1] for line in output.splitlines() if "said (" in line]


def both(found: list[str]) -> str:
    """Return the equal output of two ranks."""
    assert len(found) == 2
    assert found[0] == found[1]
    assert found[0].startswith("(2, ")
    return found[0]


@by_each
@pytest.mark.parametrize("named", [[], ["by name"]], ids=["", "by name"])
def test_lightning(launcher: str, named: list[str], tmp_path: Path) -> None:
    pytest.importorskip("lightning")
    script = program(tmp_path, LIGHTNING + 'print("said", said, flush=True)')
    both(said(good(ran([*LAUNCHERS[launcher], *PYTHON, script, *named], tmp_path))))
    assert len(list((tmp_path / "out").rglob("*.ckpt"))) == 1


@by_each
def test_huggingface_trainer(launcher: str, tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    script = program(tmp_path, TRAINER + 'print("said", said, flush=True)')
    assert both(said(good(ran([*LAUNCHERS[launcher], *PYTHON, script], tmp_path)))).startswith("(2, 8, ")
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["checkpoint-4", "checkpoint-8"]


@pytest.mark.parametrize(
    "words", [[*HVDRUN, "-np", "2", *PYTHON], [*PYTHON, "-m", "hvd_kernel.compat"]], ids=["", "spawns"]
)
def test_ignites_backend_horovod(words: list[str], tmp_path: Path) -> None:
    pytest.importorskip("ignite")
    more = [] if HVDRUN[-1] in words else ["spawn"]
    done = ran([*words, program(tmp_path, IGNITE), *more], tmp_path)
    both(said(good(done)))


@pytest.mark.timeout(600)
def test_both_in_a_cell(tmp_path: Path) -> None:
    pytest.importorskip("lightning")
    pytest.importorskip("transformers")
    with Kernel(tmp_path) as kernel:
        for folder, text in (("lightning", LIGHTNING), ("trainer", TRAINER)):
            kernel.run(f"%%hvdrun -np 2\nFOLDER = {str(tmp_path / folder)!r}" + text, timeout=200)
            (line,) = kernel.run("%%hvdrun\nprint('said', said)").text().splitlines()
            assert line.startswith("[0-1] said (2, "), "the same on both ranks"
    assert len(list((tmp_path / "lightning").rglob("*.ckpt"))) == 1
    assert sorted(path.name for path in (tmp_path / "trainer").iterdir()) == ["checkpoint-4", "checkpoint-8"]
