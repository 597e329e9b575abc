"""``hvd.bench()`` and ``%hvd bench``: what is stored of a measurement, its permissions, and how it is shown."""

from __future__ import annotations

import json
import stat
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
from IPython.core.interactiveshell import InteractiveShell
from IPython.utils.capture import capture_output

from hvd_kernel.bench.report import LIMIT, Result, picture
from hvd_kernel.formatting.units import binary_size
from hvd_kernel.magics import load_ipython_extension, unload_ipython_extension
from hvd_kernel.magics.commands import inspection
from hvd_kernel.processes import bandwidth
from hvd_kernel.processes.bandwidth import Measured, keep, kept, machine

RESULTS = [
    {"contender": "hvd_kernel", "nbytes": 4096, "seconds": 4e-6},
    {"contender": "hvd_kernel", "nbytes": 1 << 20, "seconds": 5e-4},
    {"contender": "torch gloo", "nbytes": 1 << 20, "seconds": 2e-3},
]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "hvd_kernel"


def test_stored_bandwidth_is_private_and_per_number_of_ranks(cache: Path) -> None:
    assert kept(4) is None
    assert keep(4, RESULTS) == ""
    found = kept(4)
    assert found is not None
    assert found.seconds == {"hvd_kernel": {4096: 4e-6, 1 << 20: 5e-4}, "torch gloo": {1 << 20: 2e-3}}
    assert kept(2) is None
    assert stat.S_IMODE(cache.stat().st_mode) == 0o700
    (file,) = cache.iterdir()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_nearest_size_gives_the_possible_bandwidth() -> None:
    keep(4, RESULTS)
    found = kept(4)
    assert found is not None
    large, small = (1 << 20) / 5e-4, 4096 / 4e-6
    assert [found.possible(nbytes) for nbytes in (0, 1, 60_000, 70_000, 1e12)] == [small, small, small, large, large]
    assert found.best == large
    assert found.bus(100.0) == 150.0


def test_bandwidth_is_stored_per_machine_and_version(monkeypatch: pytest.MonkeyPatch) -> None:
    keep(2, RESULTS)
    with monkeypatch.context() as patch:
        patch.setattr(bandwidth, "__version__", "0.0.0")
        assert kept(2) is None
    monkeypatch.setattr(bandwidth, "machine", lambda: "another")
    assert kept(2) is None


def test_machine_is_identified_by_cpu_and_cores() -> None:
    one = "processor\t: 0\nmodel name\t: Fast 9\nprocessor\t: 1\nmodel name\t: Fast 9\n"
    assert machine(one, 2) == machine(one.replace("processor\t: 0", "cpu MHz\t: 2999"), 2)
    assert len({machine(one, 2), machine(one, 4), machine(one.replace("9", "8"), 2), machine("", 2)}) == 4
    assert machine() == machine()


@pytest.mark.parametrize("content", ["", "{", "[]", '{"ranks": 2, "time": 0, "seconds": {}}', '{"ranks": 3}', None])
def test_incomplete_file_is_ignored(cache: Path, content: str | None) -> None:
    keep(2, RESULTS)
    (file,) = cache.iterdir()
    whole = json.loads(file.read_text())
    file.write_text(json.dumps(whole | {"ranks": 3}) if content is None else content)
    assert kept(2) is None


def test_uncreatable_folder_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "taken").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "taken"))
    assert keep(2, RESULTS) == f"Not a directory: {tmp_path / 'taken' / 'hvd_kernel'}"
    assert kept(2) is None


def test_a_link_to_another_folder_is_not_followed(cache: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    cache.symlink_to(tmp_path / "elsewhere")
    assert keep(2, RESULTS) == f"{cache} is not a folder of yours"
    assert not [*(tmp_path / "elsewhere").iterdir()]


def test_the_picture_has_a_line_for_each_contender_and_no_script() -> None:
    found = [
        Result(name, nbytes, 1.0, 1.0, rate, 1.0, right=True)
        for name, rate in (("hvd_kernel", 2e9), ("<b>", 5e7), (LIMIT, 9e9))
        for nbytes in (4096, 1 << 20)
    ]
    root = ET.fromstring(picture(found, 2))
    space = {"svg": "http://www.w3.org/2000/svg"}
    assert [len(line.get("points", "").split()) for line in root.findall(".//svg:polyline", space)] == [2, 2, 2]
    texts = [element.text for element in root.findall(".//svg:text", space)]
    assert {"<b>", "4 KiB", "1 MiB", "0.01", "10"} <= {*texts}
    assert not root.findall(".//svg:script", space)
    assert [binary_size(n) for n in (1, 4096, 3 << 19, 5 << 30)] == ["1 B", "4 KiB", "1.5 MiB", "5 GiB"]


def test_one_rank_alone_and_one_size_have_a_picture() -> None:
    alone = Result("hvd_kernel", 4096, 1.0, 1.0, 0.0, 1.0, right=True)
    assert ET.fromstring(picture([alone], 1)).get("role") == "img"


@pytest.mark.parametrize(("line", "ranks"), [("bench -np 3", 3), ("bench -np 1", 2)])
def test_magic_measures_with_the_given_number_of_ranks(line: str, ranks: int, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def measured(n: int) -> Measured:
        asked.append(n)
        return Measured(n, (), "the table\n", "<svg/>", "Read-only file system: /home/ann/.cache")

    monkeypatch.setattr(inspection, "measure", measured)
    shell = InteractiveShell()
    load_ipython_extension(shell)
    try:
        with capture_output() as shown:
            shell.run_line_magic("hvd", line)
    finally:
        unload_ipython_extension(shell)
    assert asked == [ranks]
    assert shown.stdout.endswith("the table\nnot kept: Read-only file system: /home/ann/.cache\n")
