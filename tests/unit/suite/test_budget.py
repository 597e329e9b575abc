"""Decisions of tools/suite: budgets and verdicts, the command of a folder, the tests that a changed file selects."""

from __future__ import annotations

from pathlib import Path

import pytest
from hvdtest.collected import native_tests
from hvdtest.offenders import ROOT
from suite import budget, phases
from suite.budget import Budget, Folder, Shard

TOML = """
[default]
setup = 240
unit = 60
"native/base" = 5

[shards.native]
"native/plain" = 1000
"native/tsan" = 2000

[shards.jupyter]
unit = 90

[extras]
unit = ["spark"]

[system]
unit = ["slurm"]
"""
TOUCHES = '[touches]\n"magics" = ["unit"]\n'
SMALL = Budget(
    default={},
    shards={
        "native": Shard("native", {"native/plain": 10.0}),
        "quick": Shard("quick", {"unit": 4.0, "multiprocess": 6.0}),
        "lab": Shard("lab", {"jupyter": 7.0, "notebooks": 3.0}),
    },
    touches={
        "hvd_kernel": ("unit", "multiprocess/collectives/test_collectives.py"),
        "hvd_kernel/cluster": ("unit", "jupyter/life/test_cluster.py"),
        "native": ("native/base", "native/engine"),
        "README.md": ("unit/house/test_architecture.py",),
    },
)


def written(tmp_path: Path, text: str) -> Path:
    (tmp_path / "unit").mkdir()
    (file := tmp_path / "budget.toml").write_text(text)
    return file


def test_a_budget_is_read(tmp_path: Path) -> None:
    read = budget.read(written(tmp_path, TOML + TOUCHES))
    assert read.default == {"setup": 240.0, "unit": 60.0, "native/base": 5.0}
    assert read.whole == 240 + 5 + 60
    assert read.shards == {
        "native": Shard("native", {"native/plain": 1000.0, "native/tsan": 2000.0}),
        "jupyter": Shard("jupyter", {"unit": 90.0}, extras=("spark",), system=("slurm",)),
    }
    assert read.touches == {"magics": ("unit",)}


def test_shard_of_a_missing_folder_is_named(tmp_path: Path) -> None:
    file = written(tmp_path, TOML.replace("unit = 90", "unit = 90\ngone = 3") + TOUCHES)
    with pytest.raises(ValueError, match=r"budget\.toml: shard jupyter lists gone, which is not a folder of tests/"):
        budget.read(file)


def test_twice_the_budget_and_no_budget_are_failures() -> None:
    folders = [Folder("unit", 120.0), Folder("jupyter", 120.1), Folder("spark", 1.0)]
    assert budget.over(folders, {"unit": 60.0, "jupyter": 60.0}) == [
        "jupyter took 120 s, more than twice its 60 s",
        "spark has no budget: give it a line in tests/budget.toml",
    ]


def test_budget_scales_with_the_machine_up_to_twice() -> None:
    reference = budget.REFERENCE_S
    slowness = [budget.slowness(times * reference) for times in (0.5, 1.0, 1.5, 9.0)]
    assert slowness == pytest.approx([1.0, 1.0, 1.5, 2.0])
    folders = [Folder("unit", 180.0), Folder("jupyter", 180.1)]
    assert budget.over(folders, {"unit": 60.0, "jupyter": 60.0}, 1.5) == [
        "jupyter took 180 s, more than twice its 60 s, on a machine 1.5 times as slow"
    ]


def test_the_table_of_a_run() -> None:
    folders = [Folder("unit", 51.26, passed=10, failed=1, skipped=2), Folder("native/new", 3.0, passed=1)]
    assert budget.table(folders, {"unit": 60.0}) == (
        "| folder     | tests | seconds | budget |\n"
        "| ---------- | ----: | ------: | -----: |\n"
        "| unit       |    13 |    51.3 |     60 |\n"
        "| native/new |     1 |     3.0 |      - |\n"
        "| sum        |    14 |    54.3 |     60 |"
    )


def test_the_slowest_tests_of_all_folders() -> None:
    folders = [Folder("unit", slowest=[("a", 1.0), ("b", 3.0)]), Folder("jupyter", slowest=[("c", 2.0)])]
    assert budget.slowest(folders, 2) == [("b", 3.0), ("c", 2.0)]


def test_a_folder_belongs_to_a_shard() -> None:
    paths = ("unit", "unit/widgets/test_board.py", "unittest/test_a.py", "native/base", "notebooks", "hvdtest/rank.py")
    assert [phases.shard_of(path, SMALL) for path in paths] == ["quick", "quick", None, "native", "lab", None]


def test_default_tier_excludes_nightly_tests_and_shards_do_not() -> None:
    default = {phase.name: phase for phase in phases.default_tier()}
    pytests = [default[folder] for folder in phases.FOLDERS]
    assert all(phase.pytest and " -m not nightly " in " ".join(phase.command) for phase in pytests)
    assert default["native/asan"].command[-2:] == ("asan", "default")
    quick = phases.shard(SMALL.shards["quick"])
    assert [phase.name for phase in quick] == ["unit", "multiprocess"]
    assert not any("not nightly" in phase.command for phase in quick)
    assert [phase.command[-2:] for phase in phases.shard(SMALL.shards["native"])] == [("plain", "all")]
    assert [phase.name for phase in phases.shard(SMALL.shards["lab"])] == ["jupyter", "notebooks"]
    assert [phase.name for phase in phases.default_tier(["lint", "unit"])] == ["lint", "unit"]


def test_a_shard_with_extras_runs_in_the_copy_that_has_them() -> None:
    (plain,) = phases.shard(Shard("plain", {"unit": 1.0}))
    (more,) = phases.shard(Shard("more", {"unit": 1.0}, extras=("spark",)))
    assert plain.command[:4] == (".venv/bin/python", "-P", "-m", "pytest")
    assert more.command == ("build/extras/bin/python", *plain.command[1:])


@pytest.mark.parametrize(
    ("changed", "tests", "shards"),
    [
        (["docs/a.md"], [], []),
        (["README.md"], ["unit/house/test_architecture.py"], ["quick"]),
        (["hvd_kernel/core/ops.py"], ["unit", "multiprocess/collectives/test_collectives.py"], ["quick"]),
        (["hvd_kernel/cluster/session.py"], ["unit", "jupyter/life/test_cluster.py"], ["quick", "lab"]),
        (["hvd_kernel/clusters.py"], ["unit", "multiprocess/collectives/test_collectives.py"], ["quick"]),
        (["native/engine/message/wire.cc"], ["native/base", "native/engine"], ["native"]),
        (
            ["tests/jupyter/front_ends/test_run.py", "hvd_kernel/core/ops.py", "native/base/a.h"],
            [
                "jupyter/front_ends/test_run.py",
                "unit",
                "multiprocess/collectives/test_collectives.py",
                "native/base",
                "native/engine",
            ],
            ["native", "quick", "lab"],
        ),
        (["tests/jupyter/conftest.py"], [], ["lab"]),
        (["tests/native/engine/controller/test_wire.cc"], ["native/engine"], ["native"]),
    ],
)
def test_tests_that_a_change_runs(changed: list[str], tests: list[str], shards: list[str]) -> None:
    assert phases.tests_of(changed, SMALL) == tests
    assert phases.shards_of(changed, SMALL) == shards


# The budget of this repository.


def test_every_folder_has_a_budget_and_one_shard() -> None:
    own = budget.read()
    folders = {path.name for path in (ROOT / "tests").iterdir() if list(path.rglob("test_*.py"))} | {"notebooks"}
    assert folders == set(phases.FOLDERS), "a folder of tests that tools/suite/phases.py runs, and no other"
    rooms = {f"native/{case.room}" for case in native_tests()}
    assert set(own.default) >= folders | {"setup", "lint"}
    in_shards = [each for shard in own.shards.values() for each in shard.seconds if not each.startswith("native/")]
    assert sorted(in_shards) == sorted(folders)
    assert set(own.default) >= rooms


def test_goals_of_the_whole_suite() -> None:
    own = budget.read()
    assert own.whole <= 25 * 60
    assert own.default["setup"] <= 4 * 60


def test_names_in_the_touches_table_exist() -> None:
    own = budget.read()
    assert not [source for source in own.touches if not (ROOT / source).exists()]
    tests = {path for paths in own.touches.values() for path in paths}
    assert not [path for path in tests if not (ROOT / "tests" / path).exists()]
    assert all(sum(shard.seconds.values()) < 60 * 60 for shard in own.shards.values())


def test_ci_runs_the_tests_that_fit_of_a_shard() -> None:
    parts = budget.parts(Shard("native", {"native/plain": 10.0, "native/fuzz": 900.0}, ("spark",)))
    assert parts == [
        Shard("native: native/plain", {"native/plain": 10.0}, ("spark",)),
        Shard("native: native/fuzz", {"native/fuzz": 900.0}, ("spark",)),
    ]
