"""Hugging Face's Trainer on our ranks: training is, to the bit, that of one process with the whole batch.

Numbers are small fractions of powers of two, so that no sum rounds, whatever its order.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hvdtest.exact import raises, same
from hvdtest.launch import RankPool
from hvdtest.pools import layouts

pytestmark = [pytest.mark.nightly, pytest.mark.mp, pytest.mark.timeout(400)]

layout = layouts((2, "shm"), (1, "auto"), (4, "shm"))

ROWS, BATCH, RATE = 40, 8, 0.25


@pytest.fixture(autouse=True)
def with_transformers() -> None:
    pytest.importorskip("transformers")


def rows(count: int = ROWS) -> list[dict[str, Any]]:
    import torch

    x = ((torch.arange(count * 2).reshape(count, 2) * 7) % 5 - 2).double() / 2
    y = x @ torch.tensor([1.0, -2.0]).double() + 0.5
    return [{"x": one, "labels": wanted} for one, wanted in zip(x, y, strict=True)]


def model(rank: int) -> Any:
    """A linear model, which every rank begins with other weights."""
    import torch

    class Line(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = torch.nn.Linear(2, 1).double()
            torch.nn.init.constant_(self.net.weight, (1 + rank) / 4)
            torch.nn.init.constant_(self.net.bias, rank / 4)

        def forward(self, x: Any, labels: Any) -> dict[str, Any]:
            logits = self.net(x)[:, 0]
            return {"loss": ((logits - labels) ** 2).mean() / 4, "logits": logits}

    return Line()


def trainer(folder: str, rank: int | None = None, data: Any = None, **options: Any) -> Any:
    import torch
    from transformers import TrainingArguments

    import hvd_kernel.torch as hvd
    from hvd_kernel.integrations.transformers import HorovodTrainer

    class InOrder(HorovodTrainer):
        def _get_train_sampler(self, *_: Any) -> Any:
            return torch.utils.data.SequentialSampler(self.train_dataset)

    given = {
        "output_dir": folder,
        "per_device_train_batch_size": BATCH // hvd.size(),
        "per_device_eval_batch_size": 4,
        "learning_rate": RATE,
        "lr_scheduler_type": "constant",
        "max_grad_norm": 0.0,
        "num_train_epochs": 1,
        "report_to": "none",
        "save_strategy": "no",
        "disable_tqdm": True,
        "use_cpu": True,
    }
    kind, line = HorovodTrainer if data is not None else InOrder, model(hvd.rank() if rank is None else rank)
    momentum = options.pop("momentum", 0.5)  # as an argument of its own optimizer only newer releases know it
    optimizer = torch.optim.SGD(line.parameters(), lr=options.get("learning_rate", RATE), momentum=momentum)
    kwargs = {name: options.pop(name) for name in ("eval_dataset", "compute_metrics") if name in options}
    args = TrainingArguments(**{**given, **options})
    return kind(model=line, args=args, train_dataset=data or rows(), optimizers=(optimizer, None), **kwargs)


def alone(epochs: int = 1, passes: int = 1) -> list[Any]:
    """Train in one process without the Trainer and hvd_kernel, from rank 0's initial state."""
    import torch

    net = model(0)
    optimizer = torch.optim.SGD(net.parameters(), lr=RATE, momentum=0.5)
    batches = list(torch.utils.data.DataLoader(rows(), batch_size=BATCH))
    for _ in range(epochs):
        for first in range(0, len(batches), passes):
            group = batches[first : first + passes]
            optimizer.zero_grad()
            for batch in group:
                (net(**batch)["loss"] / len(group)).backward()
            optimizer.step()
    return [p.detach() for p in net.parameters()]


def everywhere(net: Any, want: list[Any]) -> None:
    """Each rank checks its own."""
    for (name, got), wanted in zip(net.named_parameters(), want, strict=True):
        same(got.detach(), wanted, name)


def trained(folder: str, options: dict[str, Any], wanted: dict[str, Any]) -> None:
    import hvd_kernel.torch as hvd

    made = trainer(folder, **options)
    made.train()
    everywhere(made.model, alone(**wanted))
    args = made.args
    assert (args.world_size, args.process_index, args.should_save) == (hvd.size(), hvd.rank(), hvd.rank() == 0)
    assert made.is_world_process_zero() == (hvd.rank() == 0)


@pytest.mark.parametrize(
    ("options", "wanted"),
    [
        ({}, {}),
        ({"num_train_epochs": 3}, {"epochs": 3}),
        ({"gradient_accumulation_steps": 2}, {"passes": 2}),  # the fifth batch steps alone
    ],
    ids=["plain", "epochs", "accumulated"],
)
def test_training_equals_that_of_one_process(
    ranks: RankPool, tmp_path: Path, options: dict[str, Any], wanted: dict[str, Any]
) -> None:
    ranks.run(trained, str(tmp_path), options, wanted)


def clipped(folder: str) -> list[float]:
    import torch

    made = trainer(folder, max_grad_norm=0.125, max_steps=1, momentum=0.0)
    before = [torch.full((1, 2), 0.25).double(), torch.zeros(1).double()]
    made.train()
    moved = torch.cat([(p.detach() - b).flatten() for p, b in zip(made.model.parameters(), before, strict=True)])
    assert abs(moved.norm().item() - RATE * 0.125) < 1e-6, "the norm is that of the averaged gradient"
    return moved.tolist()


def test_clipping_sees_averaged_gradients(ranks: RankPool, tmp_path: Path) -> None:
    found = ranks.run(clipped, str(tmp_path))
    assert all(each == found[0] for each in found)


def resumed(folder: str) -> None:
    """Stop after one of three epochs and resume from the folder; logged values are the ranks' mean."""
    import torch

    import hvd_kernel.torch as hvd

    options = {"num_train_epochs": 3, "save_strategy": "epoch", "logging_steps": 1}
    whole = trainer(folder, **options)
    whole.train()
    everywhere(whole.model, alone(epochs=3))
    losses = [line["loss"] for line in whole.state.log_history if "loss" in line]
    assert hvd.broadcast_object(losses, 0) == losses, "the same on every rank"
    net, first = model(0), rows()[:BATCH]
    batch = {name: torch.stack([row[name] for row in first]) for name in ("x", "labels")}
    assert losses[0] == net(**batch)["loss"].item(), "the first batch's, of all ranks"
    hvd.barrier()
    again = trainer(folder, **options)
    again.train(resume_from_checkpoint=f"{folder}/checkpoint-5")
    everywhere(again.model, alone(epochs=3))


def test_saving_logging_and_resuming(ranks: RankPool, tmp_path: Path) -> None:
    ranks.run(resumed, str(tmp_path))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["checkpoint-10", "checkpoint-15", "checkpoint-5"]
    state = json.loads((tmp_path / "checkpoint-5/trainer_state.json").read_text())
    assert (state["global_step"], state["is_world_process_zero"]) == (5, True)


def evaluated(folder: str) -> dict[str, Any]:
    """Thirteen rows: no number of ranks divides them; each counts once."""
    import torch

    seen: list[int] = []

    def metrics(found: Any) -> dict[str, float]:
        seen.append(len(found.label_ids))
        return {"mean": float(abs(found.predictions - found.label_ids).mean())}

    made = trainer(folder, rank=0, eval_dataset=rows(13), compute_metrics=metrics)
    found = made.evaluate()
    net = model(0)
    batch = {name: torch.stack([row[name] for row in rows(13)]) for name in ("x", "labels")}
    outputs = net(**batch)
    wanted = (outputs["logits"] - batch["labels"]).abs().mean().item()
    assert seen == [13]
    assert abs(found["eval_mean"] - wanted) < 1e-12
    assert abs(found["eval_loss"] - outputs["loss"].item()) < 1e-12, "the mean over all rows"
    predicted = made.predict(rows(13))
    same(torch.tensor(predicted.predictions), net(**batch)["logits"].detach())
    return {name: found[name] for name in ("eval_loss", "eval_mean")}


def test_evaluation_covers_all_rows_on_every_rank(ranks: RankPool, tmp_path: Path) -> None:
    found = ranks.run(evaluated, str(tmp_path))
    assert all(each == found[0] for each in found)


def few_rows(folder: str, count: int, batch: int) -> float:
    """The loss of an evaluation in which some ranks have part of a batch, or nothing but rows that fill it up."""
    import torch

    made = trainer(folder, rank=0, eval_dataset=rows(count), per_device_eval_batch_size=batch)
    net = model(0)
    whole = {name: torch.stack([row[name] for row in rows(count)]) for name in ("x", "labels")}
    return float(made.evaluate()["eval_loss"] - net(**whole)["loss"].item())


@pytest.mark.parametrize(("count", "batch"), [(13, 8), (5, 8), (20, 8), (16, 8), (1, 4)])
def test_evaluation_loss_counts_each_row_once(ranks: RankPool, tmp_path: Path, count: int, batch: int) -> None:
    for difference in ranks.run(few_rows, str(tmp_path), count, batch):
        assert abs(difference) < 1e-12


def left_behind(folder: str) -> list[list[str]]:
    """Return accelerate's state for other code, before, during and after the use of our Trainer."""
    from accelerate import Accelerator, PartialState
    from accelerate.state import AcceleratorState, GradientState

    import hvd_kernel.torch as hvd

    def others() -> str:
        state = Accelerator(cpu=True).state
        told = f"{state.distributed_type} {state.num_processes} {state.process_index}"
        AcceleratorState._reset_state(reset_partial_state=True)  # as the next TrainingArguments does
        GradientState._reset_state()
        return told

    class Stops(Exception):
        pass

    def fails(*_: Any) -> None:
        assert PartialState().num_processes == hvd.size()
        raise Stops

    seen = [others()]
    made = trainer(folder, max_steps=1, eval_dataset=rows(13))
    seen.append(others())
    for use in (made.train, made.evaluate, lambda: made.predict(rows(3)), lambda: made.save_model(folder)):
        use()
        seen.append(others())
    broken = trainer(folder, max_steps=1, eval_dataset=rows(13), compute_metrics=fails)
    broken.data_collator = fails
    for use in (broken.train, broken.evaluate):
        raises(Stops, "", use)
        seen.append(others())
    accelerator = made.accelerator
    ranks_of_ours = [
        accelerator.num_processes,
        accelerator.process_index,
        accelerator.is_main_process,
        accelerator.is_last_process,
        made.args.world_size,
    ]
    assert ranks_of_ours == [hvd.size(), hvd.rank(), hvd.rank() == 0, hvd.rank() == hvd.size() - 1, hvd.size()]
    made.train()
    return seen


def test_no_state_of_accelerate_remains(ranks: RankPool, tmp_path: Path) -> None:
    for seen in ranks.run(left_behind, str(tmp_path)):
        assert seen == ["DistributedType.NO 1 0"] * 8


def dealt(folder: str) -> list[int]:
    """Return the rows that this rank trains with in random order."""
    import torch

    from hvd_kernel.core import session

    torch.manual_seed(session.rank())  # a script that seeds each rank differently
    numbered = [
        {"x": torch.tensor([float(i), 0.0]).double(), "labels": torch.tensor(0.0).double()} for i in range(ROWS)
    ]
    made = trainer(folder, data=numbered, learning_rate=0.0)
    return [int(number) for batch in made.get_train_dataloader() for number in batch["x"][:, 0]]


def test_each_row_is_assigned_to_one_rank(ranks: RankPool, tmp_path: Path) -> None:
    found = ranks.run(dealt, str(tmp_path))
    assert sorted(number for each in found for number in each) == list(range(ROWS))
    assert found[0] != sorted(found[0])


def collective(folder: str) -> None:
    import torch

    import hvd_kernel.torch as hvd

    accelerator = trainer(folder).accelerator
    rank, size = hvd.rank(), hvd.size()
    if size > 1:
        same(accelerator.gather(torch.tensor(rank)), torch.arange(size))
        assert accelerator.gather_for_metrics([f"text {rank}"]) == [f"text {each}" for each in range(size)]
    wide = accelerator.pad_across_processes(torch.ones(2, rank + 1), dim=1, pad_index=-100)
    same(wide, torch.cat([torch.ones(2, rank + 1), torch.full((2, size - rank - 1), -100.0)], 1))
    wide = accelerator.pad_across_processes({"a": torch.ones(rank + 1, 2)}, dim=0, pad_first=True)
    same(wide["a"], torch.cat([torch.zeros(size - rank - 1, 2), torch.ones(rank + 1, 2)]))
    same(accelerator.reduce(torch.tensor([float(rank)])), torch.tensor([float(sum(range(size)))]))
    same(accelerator.reduce(torch.tensor([float(rank)]), "mean"), torch.tensor([(size - 1) / 2]))
    raises(ValueError, "reduction='max'", accelerator.reduce, torch.ones(1), "max")
    accelerator.wait_for_everyone()
    with accelerator.main_process_first():
        pass


def test_collectives(ranks: RankPool, tmp_path: Path) -> None:
    ranks.run(collective, str(tmp_path))


def language_model(folder: str) -> list[float]:
    """A tiny GPT-2, made from its configuration: each token of all ranks' batches counts alike, as in one process."""
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

    import hvd_kernel.torch as hvd
    from hvd_kernel.integrations.transformers import HorovodTrainer, HorovodTrainingArguments

    def small(seed: int) -> Any:
        torch.manual_seed(seed)
        sizes = {"vocab_size": 16, "n_positions": 8, "n_embd": 8, "n_layer": 1, "n_head": 2}
        nothing_random = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
        return GPT2LMHeadModel(GPT2Config(**sizes, **nothing_random)).double()

    def text(i: int) -> dict[str, Any]:
        ids = torch.tensor([(i + j) % 16 for j in range(8)])
        return {"input_ids": ids, "labels": torch.where(torch.arange(8) < 2 + i % 6, ids, -100)}

    def fitted(kind: Any, arguments: Any, seed: int, batch: int, **more: Any) -> Any:
        args = arguments(
            output_dir=folder,
            per_device_train_batch_size=batch,
            gradient_accumulation_steps=2,
            num_train_epochs=3,
            learning_rate=0.01,
            report_to="none",
            disable_tqdm=True,
            use_cpu=True,
            logging_steps=1,
            save_strategy="no",
        )
        with args.main_process_first():
            made = kind(model=small(seed), args=args, train_dataset=[text(i) for i in range(32)], **more)
        made.train()
        return made

    made = fitted(
        HorovodTrainer, HorovodTrainingArguments, hvd.rank(), 8 // hvd.size(), distributed_options={"groups": 2}
    )
    made.save_model(f"{folder}/last")
    hvd.barrier()
    loaded = GPT2LMHeadModel.from_pretrained(f"{folder}/last", dtype=torch.float64)
    want = fitted(Trainer, TrainingArguments, 0, 8)
    for (name, got), whole, read in zip(
        made.model.named_parameters(), want.model.parameters(), loaded.parameters(), strict=True
    ):
        torch.testing.assert_close(got, whole, rtol=0, atol=1e-9, msg=lambda text, name=name: f"{name}: {text}")
        same(read.detach(), got.detach(), name)
    for log, wanted in zip(made.state.log_history, want.state.log_history, strict=True):
        for name in {"loss", "grad_norm", "learning_rate"} & set(wanted):
            assert abs(log[name] - wanted[name]) < 1e-5, (name, log, wanted)
    return [p.double().sum().item() for p in made.model.parameters()]


def test_a_language_model(ranks: RankPool, tmp_path: Path) -> None:
    found = ranks.run(language_model, str(tmp_path))
    assert all(each == found[0] for each in found)
