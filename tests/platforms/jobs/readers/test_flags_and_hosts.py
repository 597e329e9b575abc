"""Parts of the readers: tables of flags, lists of hosts and nodes, machine types, quantities."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from hvd_kernel.jobs import JobError, formats, knobs
from hvd_kernel.jobs.readers import hostfile, slurm
from hvd_kernel.jobs.readers.gradient import gpus_of
from hvd_kernel.jobs.readers.mpirun import HOROVOD, HOROVOD_SPELLED, MPI
from hvd_kernel.jobs.spec import quantity
from hvd_kernel.launch.cli import elastic, flags


@pytest.mark.parametrize("knob", knobs.KNOBS, ids=lambda knob: knob.key)
def test_knob_of_hvdrun_is_read_as_its_variable(knob: knobs.Knob) -> None:
    for flag, side in [(flag, "1") for flag in knob.flags] + [(flag, "0") for flag in knob.off]:
        text = side if knob.switch else "7"
        assert HOROVOD[flag.lstrip("-")].nargs == (0 if knob.switch else 1)
        spec = formats.read(f"horovodrun -np 1 {flag} {'' if knob.switch else text} python a.py", "x")
        assert [(variable.name, variable.value) for variable in spec.environment] == [(knob.variable, knob.turn(text))]


def test_flags_of_hvdrun_have_the_same_dashes_in_a_job_line() -> None:
    ours = {name for table in (flags.ACTIONS, flags.JOB) for names in table for name in names}
    ours |= {flag for row in elastic.FLAGS for flag in row.flags}
    ours |= {flag for knob in knobs.KNOBS for flag in (*knob.flags, *knob.off)}
    assert set(HOROVOD_SPELLED.flags) == ours | {"-h", "--help"}


def test_flags_of_hvdrun_have_the_same_number_of_values() -> None:
    for table in (flags.ACTIONS, flags.JOB):
        for names, how in table.items():
            nargs = 0 if how.get("action") == "store_true" else 1
            assert {HOROVOD[name.lstrip("-")].nargs for name in names} == {nargs}, names
    for row in elastic.FLAGS:
        assert {HOROVOD[flag.lstrip("-")].nargs for flag in row.flags} == {row.nargs}


@pytest.mark.parametrize("table", [MPI, HOROVOD], ids=["mpi", "horovod"])
def test_ignored_and_refused_flags_have_a_reason(table) -> None:
    assert [name for name, flag in table.items() if flag.use in ("ignored", "refused") and not flag.note] == []


def test_hosts_without_slots_get_the_given_number() -> None:
    spec = hostfile.read("a\nb:3\na\n", "hosts", 4)
    assert [(replica.host, replica.slots) for replica in spec.replicas] == [("a", 8), ("b", 3)]


def test_list_of_hosts() -> None:
    assert hostfile.host_list(" a:2, b ,[::1]:3,joe@c", "-H") == [("a", 2), ("b", 1), ("::1", 3), ("joe@c", 1)]
    several = [("n1.cluster", 4), ("joe@10.0.0.1", 1), ("fe80::1", 2), ("joe@::1", 3)]
    spelled = ",".join(hostfile.spelled(*host) for host in several)
    assert spelled == "n1.cluster:4,joe@10.0.0.1:1,[fe80::1]:2,joe@[::1]:3"
    assert hostfile.host_list(spelled, "-H") == several
    with pytest.raises(JobError) as caught:
        hostfile.host_list("a,b:x", "-H a,b:x")
    assert str(caught.value) == (
        "-H a,b:x: 'b:x' is not a host with its slots: write host:4 (in a file: host slots=4)."
    )


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("export A=1\nexport B=2\n", "env.sh"),
        ("image:latest\n", "tag"),
        ("replicas: 4\nslots: 2\n", "job.yml"),
        ("node 1\n", "notes"),
        ("a\n# b\nc d\n", "notes"),
        ("", "empty"),
        ("# only a comment\n", "comment"),
        ("true", "the command line"),
    ],
)
def test_other_texts_are_not_detected_as_hostfiles(text: str, name: str) -> None:
    assert not hostfile.matches(text, name)


@pytest.mark.parametrize("text", ["n1 slots=4\n", "n1 4\n", "\n"])
def test_other_texts_are_not_detected_as_files_of_grid_engine(text: str) -> None:
    assert not hostfile.matches_sge(text, "hosts")


@pytest.mark.parametrize(
    ("machine", "gpus"),
    [
        *(("p3.16xlarge", 8), ("p2.xlarge", 1), ("P4000", 1), ("P6000x2", 2), ("V100-32Gx4", 4), ("A100-80Gx8", 8)),
        *(("RTX4000", 1), ("GPU+", 1), ("C5", 0), ("c5.xlarge", 0), ("wonder", None)),
    ],
)
def test_gpus_of_machine_types(machine: str, gpus: int | None) -> None:
    assert gpus_of(machine) == gpus


@pytest.mark.parametrize(
    ("names", "nodes"),
    [
        ("n1", ["n1"]),
        ("a,b-1.x,c_2", ["a", "b-1.x", "c_2"]),
        ("n[1-3]", ["n1", "n2", "n3"]),
        ("n[08-11,7,100]", ["n08", "n09", "n10", "n11", "n7", "n100"]),
        ("n[001-003]-ib", ["n001-ib", "n002-ib", "n003-ib"]),
        ("a[1-2]b[01-02],c", ["a1b01", "a1b02", "a2b01", "a2b02", "c"]),
        ("r[1,3]c[0-1]n[5-6]", ["r1c0n5", "r1c0n6", "r1c1n5", "r1c1n6", "r3c0n5", "r3c0n6", "r3c1n5", "r3c1n6"]),
    ],
)
def test_node_lists_of_slurm(names: str, nodes: list[str]) -> None:
    assert slurm.expand(names) == nodes


def test_counts_of_slurm() -> None:
    assert slurm.counts("4(x2),3", "X") == [4, 4, 3]
    assert slurm.counts("16", "X") == [16]


NO_LIST = "SLURM_JOB_NODELIST={!r} is not a list of nodes, as in n[1-3,07],m: a bracket or a name is missing."
NO_RANGE = "SLURM_JOB_NODELIST: [{0}] has {1!r}, which is not a range of numbers: 1, 1-3 or 001-100."
NO_COUNT = "SLURM_TASKS_PER_NODE={!r} is not a number for each node, as in 4(x2),3."


def counts(text: str) -> list[int]:
    return slurm.counts(text, "SLURM_TASKS_PER_NODE")


@pytest.mark.parametrize(
    ("read", "text", "error"),
    [
        *((slurm.expand, t, NO_LIST.format(t)) for t in ("", "n[1-3", "n1]", "n[[1]]", "a,,b", ",a", "a b", "[1-2]x[")),
        (slurm.expand, "n[3-1]", NO_RANGE.format("3-1", "3-1")),
        (slurm.expand, "n[1,a]", NO_RANGE.format("1,a", "a")),
        (slurm.expand, "n[]", NO_RANGE.format("", "")),
        (slurm.expand, "n[0-999999999]", NO_RANGE.format("0-999999999", "0-999999999")),
        (slurm.expand, "a[1-999]b[1-999]", "SLURM_JOB_NODELIST='a[1-999]b[1-999]' has more than 100000 nodes."),
        *((counts, text, NO_COUNT.format(text)) for text in ("", "4(x2", "4x2", "-1", "4(x)", "1(x999999999)")),
    ],
)
def test_wrong_node_lists_and_counts_of_slurm(read: Callable[[str], object], text: str, error: str) -> None:
    with pytest.raises(JobError) as caught:
        read(text)
    assert str(caught.value) == error


def test_thousandths_are_exact() -> None:
    """9 times 1e-3 is not 0.009."""
    assert [quantity(f"{number}m") for number in range(1000)] == [number / 1000 for number in range(1000)]
