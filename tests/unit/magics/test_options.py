"""Options of the magics: every spelling, and what is refused with which words."""

from __future__ import annotations

import pytest
from hvdtest.magic_lines import parse, spellings

from hvd_kernel.errors import UsageError
from hvd_kernel.magics.cluster_request import ignored_parts, requested_cluster, slots
from hvd_kernel.magics.options import Options, filled, names, resolve
from hvd_kernel.processes.cluster_spec import ClusterSpec


@pytest.mark.parametrize("line", ["-np 4", "-np=4", "-n 4", "-n4", "--num-proc 4", "--num-proc=4"])
def test_number_of_ranks(line: str) -> None:
    assert parse("%%hvdrun", line) == Options(n=4)


@pytest.mark.parametrize("magic", ["%%hvdrun", "%hvd"])
def test_glued_np_is_refused_with_a_hint(magic: str) -> None:
    with pytest.raises(UsageError, match=r"'-np4' is not an option: write -np 4, with a space"):
        parse(magic, "-np4")


@pytest.mark.parametrize("flag", ["--ranks", "--targets", "-t"])
def test_ranks_and_its_aliases(flag: str) -> None:
    assert parse("%%hvdrun", f"{flag} 0,2-3").ranks == "0,2-3"


def test_everything_at_once() -> None:
    line = (
        "-np 2 --local --push a,b --pull c -o res --timeout 2.5 -H h1:1,h2:1 --hostfile f "
        "--mpi-args '--mca btl self,tcp' -t ::2"
    )
    assert parse("%%hvdrun", line) == Options(
        n=2,
        ranks="::2",
        local=True,
        push=("a", "b"),
        pull=("c",),
        out="res",
        timeout=2.5,
        hosts="h1:1,h2:1",
        hostfile="f",
        mpi_args=("--mca", "btl", "self,tcp"),
    )


@pytest.mark.parametrize(
    ("line", "job"),
    [("", None), ("--bg", ""), ("--bg train", "train"), ("--bg=run-2.1", "run-2.1"), ("--bg --ranks 0 -o x", "")],
)
def test_a_name_for_the_job_may_be_given(line: str, job: str | None) -> None:
    assert parse("%%hvdrun", line).bg == job


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


def test_jobs_to_wait_for() -> None:
    assert parse("%hvdjobs", "--wait a b --timeout 2") == Options(wait=True, arguments=("a", "b"), timeout=2.0)
    assert parse("%hvd", "restart -np 2 --force") == Options(n=2, arguments=("restart",), force=True)


@pytest.mark.parametrize("line", ["--mpi-args -v", "--mpi-args=-v"])
def test_mpi_args_may_begin_with_a_dash(line: str) -> None:
    assert parse("%%hvdrun", line).mpi_args == ("-v",)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("-np 0", "'0' must be a whole number, at least 1"),
        ("-np four", "'four' must be a whole number, at least 1"),
        ("--timeout soon", "'soon' must be seconds, above 0"),
        ("--rank 2", r"^%%hvdrun: '--rank' is not an option: did you mean --ranks\?$"),
        ("--nonsense", r"^%%hvdrun: unrecognized arguments: --nonsense\. usage: "),
        ("--time 2", r"did you mean --timeout\?"),
        ("-np", "expected one argument"),
        ("--timeout 0", "above 0"),
        ("--timeout nan", "above 0"),
        ("--push a-b", "'a-b' is not a variable's name"),
        ("-o 1x", "not a variable's name"),
        ("--bg all", "'all' is not a job's name: write letters, digits, _ . and -"),
        ("--bg a/b", "'a/b' is not a job's name"),
        ("--bg train x = 1", "code begins on the next line"),
        ("--nonsense", "--nonsense"),
        ("--num 4", "--num"),
        ("x = 1", "code begins on the next line"),
        ("--push 'a", "close the quotes"),
    ],
)
def test_what_is_refused(line: str, words: str) -> None:
    with pytest.raises(UsageError, match=words) as caught:
        parse("%%hvdrun", line)
    assert "%%hvdrun" in str(caught.value)


@pytest.mark.parametrize("line", ["start -np 4", "-np 4 start"])
def test_verb_before_or_after_options(line: str) -> None:
    assert parse("%hvd", line) == Options(n=4, arguments=("start",))


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


def test_wanted_keeps_what_is_not_said() -> None:
    running = ClusterSpec(n=4, hosts="h:4", mpi_args=("-v",))
    assert requested_cluster(Options(), ClusterSpec(3)) == ClusterSpec(n=3)
    assert requested_cluster(Options(), running) == running
    assert requested_cluster(Options(n=2), running) == ClusterSpec(n=2, hosts="h:4", mpi_args=("-v",))
    assert requested_cluster(Options(hosts="a:1,b:1"), ClusterSpec(3)) == ClusterSpec(n=2, hosts="a:1,b:1")
    assert requested_cluster(Options(mpi_args=()), running) == ClusterSpec(n=4, hosts="h:4")


def test_flags_are_all_spellings() -> None:
    assert {"--ranks", "--targets", "-t"} <= set(spellings("%hvdpull"))
    assert {"--ranks", "--targets", "-t", "--push", "-o"} <= set(spellings("%%hvdrun"))


@pytest.mark.parametrize("magic", ["%%hvdrun", "%hvd"])
def test_a_cluster_cannot_be_kept_under_the_word_for_all_of_them(magic: str) -> None:
    said = r"--keep: 'all' cannot be a cluster's name, since `%hvd clean --kept all` means all of them: choose another"
    with pytest.raises(UsageError, match=said):
        parse(magic, "--keep all")
    assert parse(magic, "--keep all-night").keep == "all-night"
    assert parse("%hvd", "clean --kept all").kept == "all"


@pytest.mark.parametrize("magic", ["%%hvdrun", "%hvd"])
@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("-np 0", "-np: '0' must be a whole number, at least 1"),
        ("-np", "-np: expected one argument"),
        ("--gpus 0,0", "--gpus: "),
    ],
)
def test_a_wrong_value_is_answered_in_one_line(magic: str, line: str, reason: str) -> None:
    with pytest.raises(UsageError) as raised:
        parse(magic, line)
    assert str(raised.value).startswith(f"{magic}: {reason}")
    assert "usage" not in str(raised.value)


@pytest.mark.parametrize(
    ("line", "code"),
    [
        ("# a comment", ""),
        ("-np 2 # don't train", "-np 2"),
        ("-np 2 #", "-np 2"),
        ("--mpi-args '# no' -np 2", "--mpi-args '# no' -np 2"),
        ('--push a --hostfile "-x A=\\" #" # b', '--push a --hostfile "-x A=\\" #"'),
        ("--hostfile a#b", "--hostfile a#b"),
        ("--hostfile a\\ #b # c", "--hostfile a\\ #b"),
    ],
)
def test_a_comment_ends_the_line_of_a_magic(line: str, code: str) -> None:
    assert parse("%%hvdrun", line) == parse("%%hvdrun", code)


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
