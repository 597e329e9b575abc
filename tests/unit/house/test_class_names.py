"""A class name stands for one thing in the whole tree: who reads it knows what is meant, whatever file it is in."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

import pytest
from hvdtest.offenders import PRODUCT, name, sources, tree

HOROVODS = "each framework has it under Horovod's name: `hvd.Compression`"
SHARED = {  # a name that classes of several files have -> why
    "Compression": HOROVODS,
    "FP16Compressor": HOROVODS,
    "BF16Compressor": HOROVODS,
    "HostDiscovery": "Horovod's class to derive from, and the protocol of whoever is asked: one interface",
    "RayHostDiscovery": "Horovod's, of horovod.ray.elastic and of horovod.ray.elastic_v2",
    "TorchEstimator": "Horovod's, of horovod.spark.torch and of horovod.spark.lightning",
    "TorchModel": "what each of these estimators gives: Horovod's",
}


def homes(paths: Iterable[Path]) -> dict[str, set[str]]:
    """Each public name of a class at the top of a file -> the files that define one of this name."""
    found = defaultdict(set)
    for path in paths:
        for node in tree(path).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                found[node.name].add(name(path))
    return found


def in_several(paths: Iterable[Path]) -> dict[str, list[str]]:
    """Those that several files define."""
    return {each: sorted(files) for each, files in homes(paths).items() if len(files) > 1}


def test_a_class_name_stands_for_one_thing() -> None:
    found = {each: files for each, files in in_several(sources(*PRODUCT)).items() if each not in SHARED}
    said = [f"{each}: {', '.join(files)}" for each, files in sorted(found.items())]
    assert not said, "\n".join(["say in the name which of them it is, or make them one class:", *said])


def test_no_exception_has_become_needless() -> None:
    assert set(SHARED) <= set(in_several(sources(*PRODUCT)))


@pytest.mark.parametrize(
    ("first", "second", "found"),
    [
        ("class Job: ...", "class Job: ...", {"Job": ["one.py", "two.py"]}),
        ("class Job: ...", "class Task:\n    class Job: ...", {}),
        ("class _Job: ...", "class _Job: ...", {}),
        ("class Job: ...\nclass Task: ...", "Job = int", {}),
    ],
)
def test_a_name_of_two_files_is_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first: str, second: str, found: dict[str, list[str]]
) -> None:
    monkeypatch.setattr("hvdtest.offenders.ROOT", tmp_path)
    paths = [tmp_path / "one.py", tmp_path / "two.py"]
    for path, source in zip(paths, (first, second), strict=True):
        path.write_text(source)
    assert in_several(paths) == found
