"""Every row of the fault matrix has an automatic test, or stands here with what it lacks.

A test carries its rows in its name: ``test_a9_...``, ``test_h1_r22_...``, in C++ ``"limits: A16 any number ..."``.
"""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

ROOMS = {"A": 22, "B": 9, "C": 8, "D": 10, "E": 6, "F": 9, "G": 4, "H": 6, "I": 10}  # rows of each part

ELSEWHERE = {  # rows whose tests have other names
    "B4": "tests/hvdtest/chaos.py",
    "B7": "tests/faults/figures.py",
    "B9": "tests/jupyter/test_output.py",
    "C1": "tests/multiprocess/test_mismatch.py",
    "C2": "tests/multiprocess/test_mismatch.py",
    "C3": "tests/multiprocess/test_mismatch.py",
    "C6": "tests/multiprocess/test_contract.py",
    "C7": "tests/multiprocess/test_join.py",
    "D1": "tests/multiprocess/test_matrix.py",
    "D3": "tests/native/tensor/test_half.cc",
    "D5": "tests/multiprocess/test_matrix.py",
    "D6": "tests/multiprocess/test_huge.py",
    "D7": "tests/multiprocess/test_numpy.py",
    "D8": "tests/native/transport/test_link.cc",
    "I2": "tests/native/fuzz/fuzz_wire.cc",
    "I3": "tests/native/fuzz/fuzz_wire.cc",
}

LACKING = {
    "B8": "resizing a living cluster: another -np starts the ranks again, and says so",
    "D9": "no checksum on the wire or in shared memory",
    "D10": "no digest of parameters between ranks while training (%hvd check does it on request)",
    "G1": "checkpoints are to come",
    "G2": "checkpoints are to come",
    "G3": "checkpoints are to come",
    "G4": "checkpoints are to come",
}


def rows() -> set[str]:
    return {f"{part}{number}" for part, last in ROOMS.items() for number in range(1, last + 1)}


def named() -> set[str]:
    """The rows that stand in names of tests."""
    found: set[str] = set()
    for path in (ROOT / "tests").rglob("*.py"):
        for prefix in re.findall(r"def test_((?:[a-z]\d+_)+)", path.read_text()):
            found |= {word.upper() for word in prefix.split("_")}
    for path in (ROOT / "tests" / "native").rglob("*.cc"):
        for name in re.findall(r'TEST_CASE\(\s*"([^"]*)"', path.read_text()):
            found |= set(re.findall(r"\b[A-I]\d+\b", name))
    return found & rows()


def test_r25_every_row_has_a_test_or_says_what_it_lacks() -> None:
    assert rows() - named() - set(ELSEWHERE) == set(LACKING)


def test_what_is_said_to_lack_a_test_lacks_one() -> None:
    assert not set(LACKING) & (named() | set(ELSEWHERE))


def test_the_files_are_there() -> None:
    for row, path in ELSEWHERE.items():
        assert (ROOT / path).exists(), f"{row}: {path}"


def test_the_page_tells_the_same() -> None:
    page = (ROOT / "docs" / "reliability.md").read_text()
    for row, what in LACKING.items():
        assert f"| {row} | {what} |" in page, row


def test_j_no_device_is_ever_reset() -> None:
    loaded = set(re.findall(r"\bcu[A-Z]\w+", (ROOT / "native" / "cuda" / "driver.h").read_text()))
    assert "cuDevicePrimaryCtxRetain" in loaded, "this is where the driver's functions stand"
    assert not [name for name in loaded if "Reset" in name or "CtxDestroy" in name]
