"""The examples of docs/extending.md work as the page describes, and are short."""

from __future__ import annotations

import importlib.util
import itertools
import socket
import subprocess
import sys
from array import array
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from hvdtest.node import needs_node
from hvdtest.offenders import ROOT
from hvdtest.recipes import examples, module, patched

from hvd_kernel.frameworks import registry
from hvd_kernel.jobs import formats
from hvd_kernel.jobs.spec import JobError
from hvd_kernel.protocol.messages import MetricsSample
from hvd_kernel.worker.inspect import digest

MAX_LINES = 30
TSC = ROOT / "build" / "js" / "node_modules" / ".bin" / "tsc"


def load(path: Path) -> Any:
    spec = importlib.util.spec_from_file_location(f"patched_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = made  # where dataclasses look their module up
    spec.loader.exec_module(made)
    return made


def test_each_kind_has_an_example_of_at_most_30_lines() -> None:
    lines = {name: len(text.splitlines()) for name, text in examples().items()}
    assert set(lines) == {"subcommand", "magic", "collective", "tile", "reader", "launcher", "engine", "adapter"}
    assert max(lines.values()) <= MAX_LINES, lines


def test_a_reader_reads_its_file_and_names_what_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(formats, "READERS", (*formats.READERS[:-1], module("reader").READER, formats.READERS[-1]))
    job = formats.read('{"current_host": "algo-1", "hosts": ["algo-1", "algo-2"]}', "resourceconfig.json")
    assert (job.kind, job.size, [replica.host for replica in job.replicas]) == ("sagemaker", 2, ["algo-1", "algo-2"])
    with pytest.raises(JobError, match=r"resourceconfig\.json:1:37: hosts: is not a list of names\."):
        formats.read('{"current_host": "algo-1", "hosts": "algo-1"}', "resourceconfig.json")


def test_an_adapter_makes_values_comparable(monkeypatch: pytest.MonkeyPatch) -> None:
    name = "hvd_kernel.numbers.adapter"
    value, other = array("d", [1.0, 2.0]), array("d", [1.0, 3.0])
    assert digest.together(digest.leaves(value)) == "", "without it, nobody knows such a value"
    monkeypatch.setitem(registry._MODULES, "array", name)  # the row of the table
    monkeypatch.setitem(sys.modules, name, module("adapter"))
    same, changed = ([digest.together(digest.leaves(each))] for each in (array("d", value), other))
    assert digest.together(digest.leaves(value)) == same[0] != changed[0]
    assert registry.first("facts", value) == {"shape": "(2,)", "dtype": "d"}
    assert registry.first("nbytes", value) == 16


def test_launcher_row_of_variables_forms_a_job(tmp_path: Path) -> None:
    topology = load(patched("launcher", tmp_path) / "hvd_kernel" / "core" / "topology.py")
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = str(probe.getsockname()[1])
    said = {"FLUX_JOB_SIZE": "2", "HOROVOD_CONTROLLER_ADDR": "127.0.0.1", "HOROVOD_CONTROLLER_PORT": port}

    def rank(number: int) -> tuple[int, int, list[bytes]]:
        peers = topology.find(env={**said, "FLUX_TASK_RANK": str(number)})
        try:
            return peers.rank, peers.size, peers.exchange(b"from %d" % number)
        finally:
            peers.close()

    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(rank, range(2))) == [(n, 2, [b"from 0", b"from 1"]) for n in range(2)]


def test_a_tile_has_its_figure(tmp_path: Path) -> None:
    clock = itertools.count()
    board = load(patched("tile", tmp_path) / "widgets" / "board.py").Board([0, 1], "a cell", lambda: float(next(clock)))
    assert board.totals()["slowest"] is None
    for second in range(2):
        for number in range(2):
            reduced = second * (number + 1) * 10**9  # 1 and 2 GB, in a second of communication
            board.feed(MetricsSample(number, second, "compute", bytes=reduced, ops=second, comm_ns=second * 10**9))
    assert board.totals()["slowest"] == 1.0
    board.finish({})
    assert board.totals()["bus"] == 1.5


@needs_node
@pytest.mark.skipif(not TSC.exists(), reason="no TypeScript: bash .ci/js install")
def test_a_tile_is_typed_and_built(tmp_path: Path) -> None:
    folder = patched("tile", tmp_path, "widgets/js")
    (folder / "build").mkdir()
    (folder / "build" / "js").symlink_to(ROOT / "build" / "js")
    checked = subprocess.run([TSC, "-p", "widgets/js"], cwd=folder, capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stdout
