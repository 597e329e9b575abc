"""One kernel for all these tests: see hvdtest/place.py."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator

import pytest
from hvdtest.place import TELL_KEYS, TELL_RANK, Place, PlacedKernel, plant


@pytest.fixture(scope="package")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    home, folder = tmp_path_factory.mktemp("security"), tmp_path_factory.mktemp("notebook")
    canary = home / "canary"
    plant(folder, canary)
    before = os.umask(0)
    try:
        with PlacedKernel(home, folder) as kernel:
            kernel.run("%%hvdrun -np 2", timeout=120)
            os.umask(before)
            kernel.run(TELL_KEYS.format(path=str(home / "client")))
            kernel.run(TELL_RANK.format(path=str(home / "rank")))
            client = json.loads((home / "client").read_text())
            engine, secret = json.loads((home / "rank1").read_text())
            yield Place(kernel, folder, home, canary, client, json.loads(engine), secret)
    finally:
        os.umask(before)
