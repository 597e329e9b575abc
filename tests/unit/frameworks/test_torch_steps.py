"""Steps and samples of plain torch optimizers, for the panel: which steps are one, and which module is the model."""

from __future__ import annotations

import copy
import pickle
import warnings
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo.testing import CompileCounter

from hvd_kernel.core import metrics
from hvd_kernel.frameworks import torch_steps
from hvd_kernel.torch import step_digests


@pytest.fixture(autouse=True)
def no_counts(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(step_digests, "_round", ((-1, -1), set()))
    metrics.reset()
    yield
    metrics.reset()


def counts() -> tuple[int, int]:
    snapshot = metrics.snapshot()
    return snapshot.step, snapshot.samples


def mlp() -> nn.Sequential:
    return nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 1))


def train(model: nn.Module, optimizer: torch.optim.Optimizer, batches: list[int]) -> None:
    for size in batches:
        optimizer.zero_grad()
        model(torch.ones(size, 3)).sum().backward()
        optimizer.step()


def sgd(model: nn.Module) -> torch.optim.SGD:
    return torch.optim.SGD(model.parameters(), lr=0.1)


def test_steps_are_counted_and_samples_from_the_second_step() -> None:
    model = mlp()
    train(model, sgd(model), [5, 6, 7])
    assert counts() == (3, 13)
    with torch.no_grad():
        model(torch.ones(9, 3))
    train(model, sgd(model), [2])  # another optimizer of the same model
    assert counts() == (4, 15)


def test_compiled_steps_are_not_counted_in_their_graph() -> None:
    model = mlp()
    optimizer = sgd(model)
    train(model, optimizer, [5])
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        torch.compile(optimizer.step, backend="eager")()
    assert counts() == (1, 0)


class Wrapper(nn.Module):
    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.module(x)
        return result


def test_the_outermost_module_that_is_called_is_the_model() -> None:
    inner = mlp()
    outer, unused = Wrapper(inner), Wrapper(inner)
    assert torch_steps.parent(inner) is unused
    train(inner, sgd(inner), [5, 6])
    assert counts() == (2, 6)
    assert not unused._forward_pre_hooks
    assert not inner[0]._forward_pre_hooks
    del outer


def test_a_wrapper_that_is_called_is_the_model() -> None:
    outer = Wrapper(mlp())
    train(outer, sgd(outer), [5, 6, 7])
    assert counts() == (3, 13)
    assert not outer.module._forward_pre_hooks


class DistributedDataParallel(Wrapper):
    """A wrapper with the name of torch's."""


def test_a_call_of_the_module_inside_ddp_decides_nothing() -> None:
    inner = mlp()
    ddp = DistributedDataParallel(inner)
    optimizer = sgd(ddp)
    train(ddp, optimizer, [5])
    inner(torch.ones(9, 3))
    train(ddp, optimizer, [6])
    assert counts() == (2, 6)


def test_optimizers_that_step_in_turns_share_a_step() -> None:
    model = mlp()
    optimizers = [torch.optim.SGD([parameter], lr=0.1) for parameter in model.parameters()]
    for size in (5, 6, 7):
        model(torch.ones(size, 3)).sum().backward()
        for optimizer in optimizers:
            optimizer.step()
    assert counts() == (3, 13)


def test_distributed_optimizers_count_their_own() -> None:
    class Counting(torch.optim.SGD):
        counts_steps = True

    model = mlp()
    train(model, Counting(model.parameters(), lr=0.1), [5, 6])
    assert counts() == (0, 0)


def test_parameters_without_a_module_are_steps_without_samples() -> None:
    weight = nn.Parameter(torch.ones(3))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    for _ in range(2):
        weight.sum().backward()
        optimizer.step()
    assert counts() == (2, 0)


def test_the_model_is_copied_and_pickled_without_the_count() -> None:
    model = mlp()
    train(model, sgd(model), [5])
    pickled = pickle.dumps(model)
    assert b"hvd_kernel" not in pickled
    for other in (copy.deepcopy(model), pickle.loads(pickled)):
        other(torch.ones(9, 3))
    model(torch.ones(6, 3))
    train(model, sgd(model), [1])
    assert counts() == (2, 7)


def test_torch_compile_neither_warns_nor_compiles_again() -> None:
    for wrap in (lambda model, backend: torch.compile(model, backend=backend, fullgraph=True), compile_calls):
        torch._dynamo.reset()
        counter = CompileCounter()
        inner = mlp()
        model = wrap(inner, counter)
        optimizer = sgd(inner)
        with warnings.catch_warnings():
            warnings.simplefilter("error", UserWarning)
            for _ in range(4):
                optimizer.zero_grad()
                model(torch.ones(5, 3)).sum().backward()
                optimizer.step()
            assert counter.frame_count == 1
            model(torch.ones(6, 3))  # compiled again, as it was before, with hooks on the modules
    assert counts()[0] == 8


def compile_calls(model: nn.Module, backend: CompileCounter) -> object:
    """Return a compiled function that calls a module, which itself is not compiled."""

    @torch.compile(backend=backend, fullgraph=True)
    def call(x: Tensor) -> Tensor:
        result: Tensor = model(x)
        return result

    return call
