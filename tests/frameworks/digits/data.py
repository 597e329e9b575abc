"""Digits that need no download, a network of two layers, and the parts of ranks: the same in every framework.

Terms.
  whole   a batch of one process: the ranks' parts together
  losses  of each step, before its update: a mean over the whole batch
"""

from __future__ import annotations

from typing import Any

import numpy as np

RATE, STEPS, WHOLE, HIDDEN = 0.25, 16, 32, 24


def digits() -> tuple[Any, Any]:
    """Batches of squares of 8 x 8, each a digit's pattern under noise, and the digits."""
    draw = np.random.default_rng(11)
    patterns = draw.random((10, 64)) < 0.4
    labels = draw.integers(0, 10, (STEPS, WHOLE))
    images = patterns[labels] * 0.8 + 0.2 * draw.random((STEPS, WHOLE, 64))
    return images.astype(np.float32), labels


def start() -> list[Any]:
    """Kernels, inputs first, and biases."""
    draw = np.random.default_rng(5)
    return [
        draw.normal(0, 0.2, shape).astype(np.float32) if len(shape) > 1 else np.zeros(shape, np.float32)
        for shape in ((64, HIDDEN), (HIDDEN,), (HIDDEN, 10), (10,))
    ]


def parts(rank: int, size: int) -> list[tuple[Any, Any]]:
    """A rank's rows of every batch."""
    each = WHOLE // size
    mine = slice(rank * each, (rank + 1) * each)
    return [(images[mine], labels[mine]) for images, labels in zip(*digits(), strict=True)]


def in_double_precision() -> tuple[list[float], list[Any]]:
    """Compute losses and weights of one process in float64."""
    w1, b1, w2, b2 = (each.astype(np.float64) for each in start())
    losses = []
    for images, labels in parts(0, 1):
        hidden = np.maximum(images @ w1 + b1, 0)
        logits = hidden @ w2 + b2
        logits -= logits.max(1, keepdims=True)
        chances = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
        rows = np.arange(len(labels))
        losses.append(-float(np.log(chances[rows, labels]).mean()))
        slope = chances
        slope[rows, labels] -= 1
        slope /= len(labels)
        back = (slope @ w2.T) * (hidden > 0)
        for weight, gradient in (
            (w2, hidden.T @ slope),
            (b2, slope.sum(0)),
            (w1, images.astype(np.float64).T @ back),
            (b1, back.sum(0)),
        ):
            np.subtract(weight, RATE * gradient, out=weight)
    return losses, [w1, b1, w2, b2]
