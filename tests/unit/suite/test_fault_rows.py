"""Every row of the fault matrix (docs/faults.md) has a test in the default tier, or stands here with why it has not.

A test carries its rows in its name: ``test_a9_...``, ``test_h1_r22_...``, in C++ ``"limits: A16 any number ..."``. Only tests
that are collected count, so a test that is skipped, nightly or in a file that nobody builds is none of the default tier.
"""

from __future__ import annotations

import os
import re
from collections import defaultdict
from pathlib import Path

import pytest
from hvdtest.collected import (
    DEFAULT,
    Case,
    cases,
    listed,
    native_tests,
    newest_binary,
    python_tests,
)
from hvdtest.collected import (
    NIGHTLY as NIGHTLY_TIER,
)
from hvdtest.offenders import ROOT, sources, text

HEADS = re.findall(r"^\| ([A-I]\d.*?) \|", (ROOT / "docs" / "faults.md").read_text(), re.MULTILINE)
ROWS = {row for head in HEADS for row in head.split(", ")}

ELSEWHERE = {  # rows whose tests have other names -> one that must be in the default tier
    "B4": "tests/faults/test_chaos.py::test_r6_r7_eight_faults_keep_parameters_bit_for_bit",
    "B9": "tests/jupyter/cells/test_output.py::test_a_closed_tab_loses_nothing",
    "C1": "tests/frameworks/conformance/test_conformance.py::test_host",
    "C2": "tests/frameworks/conformance/test_conformance.py::test_host",
    "C3": "tests/frameworks/conformance/test_conformance.py::test_host",
    "C6": "tests/native/engine/test_engine.cc::engine: a name in flight is refused at once, on this rank alone",
    "C7": "tests/multiprocess/collectives/test_join.py::test_unequal_batches",
    "D1": "tests/multiprocess/collectives/test_matrix.py::test_random",
    "D5": "tests/multiprocess/collectives/test_matrix.py::test_sizes",
    "D6": "tests/multiprocess/collectives/test_collectives.py::test_over_two_to_the_31",
    "D7": "tests/frameworks/conformance/test_conformance.py::test_host",
    "D8": "tests/native/transport/link/test_link.cc::the counters may wrap around",
    "I2": "tests/native/fuzz/test_corpus.cc::fuzz: nothing in the corpus crashes, nor anything near it",
    "F10": "tests/native/transport/link/test_mpi_links.cc::mpi links: an error of MPI ends the wait without a death",
    "I11": "tests/native/engine/parts/test_sizes.cc::sizes: invalid sizes are an error that names rank 0 and the operation",
    "I3": "tests/native/fuzz/test_corpus.cc::fuzz: nothing in the corpus crashes, nor anything near it",
}

NIGHTLY = {  # rows that only tests of make test-all try -> why
    "D6": "more than 2^31 elements take 6 GB of memory and half a minute",
}

LACKING = {
    "B7": "no test runs 100,000 cells in one session: `tools/figures` R20 R21 measure what a cell costs",
    "D9": "no checksum on the network or in shared memory",
}


def rows_of(nodeid: str) -> set[str]:
    """Rows in a test's name, whether the page has them or not."""
    file, _, name = nodeid.partition("::")
    if file.endswith(".cc"):
        return set(re.findall(r"\b[A-I]\d+\b", name))
    prefix = re.match(r"test_((?:[a-z]\d+_)+)", name.rpartition("::")[2].split("[")[0])
    return set(re.findall(r"\b[A-I]\d+\b", prefix[1].upper().replace("_", " "))) if prefix else set()


def python_collected(answer: Path) -> dict[str, str]:
    """Collect the files that can have a row: those with such a name in them, and those named above."""
    files = {str(path.relative_to(ROOT)) for path in sources("tests") if re.search(r"\btest_[a-i]\d+_", text(path))}
    files = {file for file in files if Path(file).name.startswith("test_")}
    files |= {nodeid.partition("::")[0] for nodeid in ELSEWHERE.values() if ".py::" in nodeid}
    return python_tests(sorted(files), answer)


@pytest.fixture(scope="module")
def tiers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, set[str]]:
    """Test without its parameters -> tiers in which it is collected."""
    found = defaultdict(set)
    for nodeid, tier in python_collected(tmp_path_factory.mktemp("collected") / "answer.json").items():
        found[nodeid.split("[")[0]].add(tier)
    for case in native_tests():
        found[case.nodeid].add(case.tier)
    return found


def with_a_test(tiers: dict[str, set[str]], tier: str) -> set[str]:
    """Rows with a test in this tier."""
    named = {row for nodeid, where in tiers.items() if tier in where for row in rows_of(nodeid)}
    return named | {row for row, nodeid in ELSEWHERE.items() if tier in tiers.get(nodeid, ())}


def test_r25_every_row_has_a_default_test_or_a_reason(tiers: dict[str, set[str]]) -> None:
    assert not set(NIGHTLY) & set(LACKING)
    assert ROWS - with_a_test(tiers, DEFAULT) == set(NIGHTLY) | set(LACKING)


def test_r25_tests_name_only_rows_of_the_page(tiers: dict[str, set[str]]) -> None:
    unknown = {nodeid: rows for nodeid in tiers if (rows := rows_of(nodeid) - ROWS)}
    assert not unknown, "write the row to docs/faults.md"


def test_r25_rows_listed_as_nightly_have_nightly_tests(tiers: dict[str, set[str]]) -> None:
    assert set(NIGHTLY) <= with_a_test(tiers, NIGHTLY_TIER)


def test_rows_listed_without_a_test_have_none(tiers: dict[str, set[str]]) -> None:
    assert not set(LACKING) & (with_a_test(tiers, DEFAULT) | with_a_test(tiers, NIGHTLY_TIER))


def test_the_tests_with_other_names_are_collected(tiers: dict[str, set[str]]) -> None:
    assert not {
        row: nodeid for row, nodeid in ELSEWHERE.items() if not tiers.get(nodeid, set()) & {DEFAULT, NIGHTLY_TIER}
    }


def test_page_lists_the_same_rows() -> None:
    page = (ROOT / "docs" / "reliability.md").read_text()
    missing = [line for row, what in (NIGHTLY | LACKING).items() if (line := f"| {row} | {what} |") not in page]
    assert not missing


def test_the_binaries_run_what_their_sources_name() -> None:
    """Of the rooms that are built, and have not changed since."""
    found = native_tests()
    for room in {case.room for case in found}:
        binary = newest_binary(room)
        names = listed(binary) if binary is not None else None
        if names is not None:
            ours = {case.name for case in found if case.room == room and case.tier == DEFAULT}
            assert not ours - names, binary


def test_binary_of_another_tier_is_not_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """ThreadSanitizer's build, made later by the shard ``native``, has fewer cases than the sources."""
    monkeypatch.setattr("hvdtest.collected.ROOT", tmp_path)
    monkeypatch.setattr("hvdtest.collected.TESTS", tmp_path / "tests")
    for built_at, build in enumerate(("native-asan", "native-tsan"), start=1):
        (binary := tmp_path / "build" / build / "base_tests").parent.mkdir(parents=True)
        binary.touch(0o755)
        os.utime(binary, (built_at, built_at))
    assert newest_binary("base") == tmp_path / "build" / "native-asan" / "base_tests"


def test_which_cases_of_a_source_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hvdtest.collected.ROOT", tmp_path)
    (file := tmp_path / "test_some.cc").write_text(
        '// TEST_CASE("A1 a comment") {}\n'
        'TEST_CASE("A2 one") {\n  CHECK(true);\n}\n'
        'TEST_CASE(\n    "A3 one in "\n    "two \\"parts\\"") {}\n'
        'TEST_CASE_TEMPLATE("A4 types", T, int, float) {}\n'
        'TEST_CASE("A5 slow" * doctest::test_suite("nightly")) {}\n'
        'TEST_CASE("A6 on request" * doctest::skip()) {}\n'
        'TEST_CASE("A7 no sanitizer" *\n          doctest::skip(test::kSanitized)) {}\n'
    )
    some = [("A2 one", "default"), ('A3 one in two "parts"', "default"), ("A4 types", "default")]
    some += [("A5 slow", "nightly"), ("A6 on request", "skipped"), ("A7 no sanitizer", "nightly")]
    assert list(cases(file, "base", budgeted=True)) == [Case("base", file.name, *each) for each in some]
    assert {case.tier for case in cases(file, "base", budgeted=False)} == {"skipped"}


def test_which_tests_of_a_file_count(tmp_path: Path) -> None:
    (file := tmp_path / "test_some.py").write_text(
        "import pytest\n"
        "def test_a1_():\n    pass\n"
        "@pytest.mark.nightly\ndef test_a2_():\n    pass\n"
        "@pytest.mark.skipif(1 + 1 == 2, reason='')\ndef test_a3_():\n    pass\n"
        "@pytest.mark.skip\ndef test_a4_():\n    pass\n"
        "@pytest.mark.gpu\ndef test_a5_():\n    pass\n"
        "def no_test_a6_():\n    pass\n"
        "class TestMore:\n"
        "    @pytest.mark.parametrize('x', [1, pytest.param(2, marks=pytest.mark.nightly)])\n"
        "    def test_b1_c2_(self, x):\n        pass\n"
    )
    found = {nodeid.partition("::")[2]: tier for nodeid, tier in python_tests([str(file)], tmp_path / "answer").items()}
    assert found == {
        "test_a1_": "default",
        "test_a2_": "nightly",
        "test_a3_": "skipped",
        "test_a4_": "skipped",
        "test_a5_": "skipped",
        "TestMore::test_b1_c2_[1]": "default",
        "TestMore::test_b1_c2_[2]": "nightly",
    }
    assert rows_of("test_some.py::TestMore::test_b1_c2_[1]") == {"B1", "C2"}


def test_j_no_device_is_ever_reset() -> None:
    loaded = set(re.findall(r"\bcu[A-Z]\w+", (ROOT / "native" / "cuda" / "driver" / "driver.h").read_text()))
    assert "cuDevicePrimaryCtxRetain" in loaded, "this is where the driver's functions stand"
    assert not [name for name in loaded if "Reset" in name or "CtxDestroy" in name]
