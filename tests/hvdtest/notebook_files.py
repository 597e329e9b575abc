"""Notebooks of this kernel as files, and cells for them: for tests in JupyterLab."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

KERNEL = {"name": "hvd_kernel", "display_name": "Python 3 (hvd)", "language": "python"}

TRAIN = """import os, torch
model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 10))
hvd.broadcast_parameters(model.state_dict(), root_rank=0)
optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.05), named_parameters=model.named_parameters())
torch.manual_seed(rank)
batch, target = torch.randn(32, 64), torch.randint(0, 10, (32,))
while hvd.allreduce(torch.tensor(float(os.path.exists("SEEN"))), name="seen by", op=hvd.Sum) == 0:
    optimizer.zero_grad()
    loss = torch.nn.functional.cross_entropy(model(batch), target)
    loss.backward()
    optimizer.step()
    hvd.log(loss=loss)
print("trained")"""
"""A training that ends when a file SEEN exists: the test has seen its panel."""


def written(file: Path, *cells: str) -> Path:
    """Write a notebook of these cells; return its file."""
    empty: dict[str, Any] = {"execution_count": None, "metadata": {}, "outputs": []}
    made = [{"cell_type": "code", "id": f"cell-{i}", "source": cell, **empty} for i, cell in enumerate(cells)]
    book = {"nbformat": 4, "nbformat_minor": 5, "metadata": {"kernelspec": KERNEL}, "cells": made}
    file.write_text(json.dumps(book))
    return file
