"""A small model, the data of each rank, and the gradients of plain autograd as reference for optimizers."""

from __future__ import annotations

from typing import Any


def model_of(seed: int = 0) -> Any:
    import torch

    torch.manual_seed(seed)
    return torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 2)).double()


def batch(rank: int, number: int = 0) -> Any:
    import torch

    return torch.randn(5, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(1000 * number + rank))


def local_gradients(rank: int, passes: int = 1) -> list[Any]:
    """Return the gradients of plain autograd for a rank."""
    model = model_of()
    for number in range(passes):
        model(batch(rank, number)).square().sum().backward()
    return [p.grad for p in model.parameters()]


def mean(gradients: list[list[Any]]) -> list[Any]:
    import torch

    return [torch.stack(each).sum(0) / len(each) for each in zip(*gradients, strict=True)]


def close(got: object, want: object, what: object = "") -> None:
    import torch

    torch.testing.assert_close(got, want, rtol=1e-14, atol=1e-14, msg=lambda text: f"{what}: {text}")
