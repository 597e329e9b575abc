"""Equal means: same type, same shape, same bits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch


def same(got: torch.Tensor, want: torch.Tensor, what: object = "") -> None:
    import torch

    assert got.dtype == want.dtype, f"{what}: {got.dtype} instead of {want.dtype}"
    assert got.shape == want.shape, f"{what}: {tuple(got.shape)} instead of {tuple(want.shape)}"
    if not torch.equal(got, want):
        wrong = (got != want).nonzero()[:5].tolist()
        raise AssertionError(f"{what}: wrong at {wrong}: {got.flatten()[:8]} instead of {want.flatten()[:8]}")


def raises(kind: type[BaseException], text: str, function: Any, *args: Any, **kwargs: Any) -> BaseException:
    """The call raises this very kind, with the text in its message."""
    caught = None
    try:
        function(*args, **kwargs)
    except kind as error:
        caught = error
    assert caught is not None, f"{kind.__name__} was not raised"
    assert type(caught) is kind, f"{type(caught).__name__} instead of {kind.__name__}: {caught}"
    assert text in str(caught), f"{caught!r} does not say {text!r}"
    return caught


def ulps(got: torch.Tensor, want: torch.Tensor) -> int:
    """Largest distance in units in the last place (float32 or float64 of like sign)."""
    import torch

    bits = {torch.float32: torch.int32, torch.float64: torch.int64}[got.dtype]
    return int((ordered(got, bits) - ordered(want, bits)).abs().max()) if got.numel() else 0


def ordered(tensor: torch.Tensor, bits: torch.dtype) -> torch.Tensor:
    """Integers in the order of the floating point numbers, one apart where those are neighbours."""
    import torch

    whole = tensor.detach().contiguous().view(bits).to(torch.int64)
    return torch.where(whole < 0, torch.iinfo(bits).min - whole, whole)
