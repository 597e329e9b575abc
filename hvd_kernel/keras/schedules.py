"""Learning rates as functions of the epoch: Horovod's formulas, and nothing else.

Terms.
  epoch  a number with a fraction: 1.5 is in the middle of the second one
"""

from __future__ import annotations

from collections.abc import Callable

Multiplier = Callable[[float], float]


def multiplier_of(given: float | Multiplier, start_epoch: int) -> Multiplier:
    """Return the function; a number stands for its powers: one for each epoch after the first."""
    if callable(given):
        return given
    factor = given
    return lambda epoch: factor ** (epoch - start_epoch)


def warmup_of(size: Callable[[], int], warmup_epochs: float, steps: Callable[[], int]) -> Multiplier:
    """Return a straight line from 1/size to 1, which the last batch of the warm-up reaches; sizes are those of then.

    Example: 4 ranks, 5 epochs of 10 batches: the first batch has (0.1 * 3 / 5 + 1) / 4.
    """

    def multiplier(epoch: float) -> float:
        done = epoch + 1.0 / steps()
        return 1.0 / size() * (done * (size() - 1) / warmup_epochs + 1)

    return multiplier
