"""Refusals of DistributedOptimizer, with Horovod's messages, before anything is initialised."""

from __future__ import annotations

import gc
import re
from typing import Any

import pytest
import torch

import hvd_kernel.torch as hvd
from hvd_kernel.frameworks.torch_batches import samples_of
from hvd_kernel.torch.samples import meter_before_first_call, meter_of_wrapped


def made(**options: object) -> object:
    model = torch.nn.Linear(2, 2)
    return hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), **options)  # type: ignore[arg-type]


W, B = torch.nn.Parameter(torch.ones(2)), torch.nn.Parameter(torch.ones(3))


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (
            {"named_parameters": [W]},
            "named_parameters should be a sequence of tuples (name, parameter), usually produced by",
        ),
        (
            {"named_parameters": iter([("w", W), ("b", B), ("w", B)])},
            "Parameter names in named_parameters must be unique. Found duplicates: w",
        ),
        (
            {"named_parameters": [("w", W)]},
            f"named_parameters was specified, but one or more model parameters were not named. Python object ids: {id(B)}",
        ),
        ({"backward_passes_per_step": 0}, "backward_passes_per_step must be > 0"),
        ({"op": 1, "gradient_predivide_factor": 2.0}, "gradient_predivide_factor not supported with op != Average"),
        ({"op": 2, "gradient_predivide_factor": 2.0}, "gradient_predivide_factor not supported with op != Average"),
        ({"op": 3}, "op=3 is not available: use Average, Sum or Adasum."),
        ({"op": 2}, "Horovod has not been initialized; use hvd.init()."),
        ({"groups": 0}, "groups should be a non-negative integer or a list of list of torch.Tensor."),
        ({"groups": -1}, "groups should be a non-negative integer or a list of list of torch.Tensor."),
        ({"groups": [["w"]]}, "groups must consist of torch.Tensor."),
        ({"groups": [[W], [W, B]]}, "A parameter can only appear once in groups."),
        ({}, "Horovod has not been initialized; use hvd.init()."),
    ],
)
def test_refusals(options: dict[str, object], text: str) -> None:
    with pytest.raises(ValueError, match=re.escape(text)):
        hvd.DistributedOptimizer(torch.optim.SGD([W, B], lr=0.1), **options)  # type: ignore[arg-type]


def test_num_groups_is_deprecated() -> None:
    with pytest.warns(DeprecationWarning, match="num_groups"), pytest.raises(ValueError, match="not been initialized"):
        made(num_groups=2)


def test_broadcast_refusals() -> None:
    with pytest.raises(ValueError, match="invalid params of type: <class 'generator'>"):
        hvd.broadcast_parameters((x for x in [W]), 0)
    with pytest.raises(ValueError, match=r"cannot broadcast torch\.optim\.LBFGS state"):
        hvd.broadcast_optimizer_state(torch.optim.LBFGS([W]), 0)


def test_samples_are_counted_once_at_the_outermost_module() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Linear(4, 2))
    meter = meter_before_first_call(model[1].parameters())
    other, loss = torch.nn.Linear(3, 3), torch.nn.MSELoss()
    for size in (5, 7):
        loss(model(other(torch.ones(size, 3))), torch.ones(size, 2))
    assert meter.pop() == 12
    assert meter.pop() == 0
    with torch.no_grad():
        model(torch.ones(4, 3))
    model.eval()
    model(torch.ones(4, 3))
    assert meter.pop() == 0
    model.train()
    model(input=torch.ones(6, 3))
    assert meter.pop() == 6
    del meter
    model(torch.ones(2, 3))
    assert not model._forward_pre_hooks, "a forgotten optimizer leaves no hook"


@pytest.mark.parametrize(
    ("batch", "batch_size", "samples"),
    [
        ({"ids": torch.ones(32, 128), "mask": torch.ones(32, 128)}, None, 32),
        ((torch.ones(32, 3), torch.ones(32)), 32, 32),
        ((torch.ones(50, 32, 8), torch.ones(32)), 32, 32),
        (torch.ones(50, 7, 8), 32, 7),
        (torch.nn.utils.rnn.pack_sequence([torch.ones(5, 2), torch.ones(3, 2), torch.ones(1, 2)]), 4, 3),
        ([torch.ones(3, 64, 64), torch.ones(3, 32, 32)], 2, 2),
        ("text", 8, 0),
    ],
)
def test_samples_of_a_batch(batch: Any, batch_size: int | None, samples: int) -> None:
    """A dict had none; of (seq, batch, feature), the sequence was counted."""
    assert samples_of(batch, batch_size) == samples


def test_batches_of_a_loader_precede_the_shape_of_the_input() -> None:
    data = torch.utils.data.TensorDataset(torch.ones(10, 6, 3))
    loader = torch.utils.data.DataLoader(
        data, batch_size=4, collate_fn=lambda rows: torch.stack([row[0] for row in rows], 1)
    )
    model = torch.nn.Linear(3, 2)
    meter = meter_of_wrapped(model.parameters())
    counted = []
    for batch in loader:
        model(batch)
        counted.append(meter.pop())
    assert counted == [4, 4, 2], "its sequences have 6 elements"
    list(torch.utils.data.DataLoader(data, batch_size=5))  # validation
    model(next(iter(loader)))
    assert meter.pop() == 4
    model(torch.ones(9, 3))
    assert meter.pop() == 9, "not of a loader"


def test_the_search_for_a_model_needs_no_hook_on_all_modules() -> None:
    """torch.compile warns of such hooks."""
    from torch.nn.modules import module

    model = torch.nn.Linear(3, 2)
    before = len(module._global_forward_pre_hooks)
    meter = meter_of_wrapped(model.parameters())
    assert len(module._global_forward_pre_hooks) == before
    model(torch.ones(4, 3))
    assert meter.pop() == 4


def test_a_search_that_finds_nothing_ends_with_its_optimizer() -> None:
    from torch.nn.modules import module

    gc.collect()
    torch.nn.Linear(1, 1)(torch.ones(1, 1))  # searches of optimizers that are forgotten already end here
    before = len(module._global_forward_pre_hooks)
    meter = meter_before_first_call([W])
    assert len(module._global_forward_pre_hooks) == before + 1
    del meter
    torch.nn.Linear(1, 1)(torch.ones(1, 1))
    assert len(module._global_forward_pre_hooks) == before
