"""Options of the magics: every spelling, and the messages of refusals."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hvdtest import golden
from hvdtest.magic_lines import parse, spellings

from hvd_kernel.errors import UsageError
from hvd_kernel.magics.cluster_request import ignored_parts, requested_cluster, slots
from hvd_kernel.magics.options import Options, filled, names, resolve
from hvd_kernel.processes.cluster_spec import ClusterSpec

TABLE = Path(__file__).parent / "lines.json"


@golden.titles(TABLE)
def test_line_gives_its_options_or_its_error(table: Path, title: str) -> None:
    golden.check(table, title, options_of)


def options_of(case: golden.Case) -> object:
    """Return the options of a magic's line that are set, or the error; a usage in it is abbreviated."""
    try:
        return golden.without_defaults(parse(case["magic"], case["line"]))
    except UsageError as error:
        return {"error": re.sub(r" usage: .*", " usage: ...", str(error), flags=re.DOTALL)}


def test_mpirun_line_sets_number_and_variables_of_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HERE", "1")
    line = (
        "--local -- mpirun -np 4 -H localhost:4 -bind-to none -x HERE -x GONE -x 'A=b c' -mca pml ob1 -mca btl ^openib "
        "-mca orte_base_help_aggregate 0 python train.py"
    )
    options = parse("%%hvdrun", line)
    assert options.local
    assert requested_cluster(options, ClusterSpec(2)) == ClusterSpec(
        n=4, mpi_args=("-x", "HERE", "-x", "A=b c", "--mca", "orte_base_help_aggregate", "0"), hosts="localhost:4"
    )
    assert [told.partition(" is ignored")[0] for told in ignored_parts(options)] == [
        "python train.py",
        "-bind-to none",
        "-mca pml ob1",
        "-mca btl '^openib'",
    ]
    assert ignored_parts(parse("%%hvdrun", "-- mpirun -np 4")) == []
    assert requested_cluster(parse("%%hvdrun", "-- horovodrun -np 3"), ClusterSpec(n=2, mpi_args=("-v",))).mpi_args == (
        "-v",
    )
    with pytest.raises(UsageError, match="the line behind -- says how many ranks there are, and where: leave out -np"):
        requested_cluster(parse("%%hvdrun", "-np 2 -- mpirun -np 4"), ClusterSpec(2))


def test_names_by_comma_or_space() -> None:
    assert names(parse("%hvdpush", "a, b c --ranks 1"), "%hvdpush") == ["a", "b", "c"]
    with pytest.raises(UsageError, match="name the variables, as in %hvdpush a b"):
        names(parse("%hvdpush", ""), "%hvdpush")
    with pytest.raises(UsageError, match=r"'a\.b' is not a variable's name"):
        names(parse("%hvdpush", "a.b"), "%hvdpush")


@pytest.mark.parametrize(
    ("text", "ranks"),
    [
        ("all", (0, 1, 2, 3)),
        ("root", (0,)),
        ("2", (2,)),
        ("0,2-3", (0, 2, 3)),
        ("[0,2-3]", (0, 2, 3)),
        ("::2", (0, 2)),
        ("1:", (1, 2, 3)),
        (":-1", (0, 1, 2)),
        ("3, 0,0", (0, 3)),
        ("0,::3", (0, 3)),
    ],
)
def test_resolve(text: str, ranks: tuple[int, ...]) -> None:
    assert resolve(text, 4) == ranks


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("4", "there is no rank 4; the cluster has ranks 0-3"),
        ("2-999999999999", "there is no rank 4,999999999999"),
        ("3:3", "names no rank"),
        ("3-1", "names no rank"),
        ("one", "'one' is not understood: write 0,2-3 or ::2 or all or root"),
        ("", "names no rank"),
        ("0:4:0", "not understood"),
    ],
)
def test_resolve_refuses(text: str, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        resolve(text, 4)


def test_slots() -> None:
    assert slots("h1:4,h2,h3:2") == 7
    with pytest.raises(UsageError, match="-H h1:x: 'h1:x' is not a host with its slots"):
        slots("h1:x")


def test_unset_options_keep_the_running_values() -> None:
    running = ClusterSpec(n=4, hosts="h:4", mpi_args=("-v",))
    assert requested_cluster(Options(), ClusterSpec(3)) == ClusterSpec(n=3)
    assert requested_cluster(Options(), running) == running
    assert requested_cluster(Options(n=2), running) == ClusterSpec(n=2, hosts="h:4", mpi_args=("-v",))
    assert requested_cluster(Options(hosts="a:1,b:1"), ClusterSpec(3)) == ClusterSpec(n=2, hosts="a:1,b:1")
    assert requested_cluster(Options(mpi_args=()), running) == ClusterSpec(n=4, hosts="h:4")


def test_flags_are_all_spellings() -> None:
    assert {"--ranks", "--targets", "-t"} <= set(spellings("%hvdpull"))
    assert {"--ranks", "--targets", "-t", "--push", "-o"} <= set(spellings("%%hvdrun"))


@pytest.mark.parametrize(
    ("line", "line_filled"),
    [
        ("-np {n} --push lr", "-np 2 --push lr"),
        ("{where}:{n}", "host:2"),
        ("{unknown} {} {n!r} {0}", "{unknown} {} {n!r} {0}"),
    ],
)
def test_braces_around_a_variable_are_its_value(line: str, line_filled: str) -> None:
    assert filled(line, {"n": 2, "where": "host"}) == line_filled


def test_a_variable_in_braces_is_a_number_or_a_text() -> None:
    with pytest.raises(UsageError, match=r"^\{np\}: `np` is neither a number nor a text, but module$"):
        filled("-np {np}", {"np": pytest})
