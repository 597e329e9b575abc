"""Hostfiles: the three spellings and what MPIs add to them, hosts of several lines, and what is said of other texts."""

from __future__ import annotations

import pytest

from hvd_kernel.jobs import JobError, formats
from hvd_kernel.jobs.readers import hostfile

OPEN_MPI = """\
# This is an example hostfile.  Comments begin with #

foo.example.com
bar.example.com slots=2
yow.example.com slots=4 max_slots=4   # two processors, no more
joe@bar slots = 1 max-slots = 8
"""
MPICH = "host1\nhost2:2\nhost3:4 binding=user:0,1 ifname=ib0 # Random comments\nhost4:1 user=joe\n"
INTEL = "node1:2 binding=map=0,3\nnode2:2 binding=map=[1,3] user=joe\nnode1\n"
PBS = "n1.cluster\nn1.cluster\nn2.cluster\nn1.cluster\n"


def hosts(text: str, slots: int = 1) -> list[tuple[str, int]]:
    spec = hostfile.read(text, "hosts", slots)
    assert (spec.kind, spec.steps, spec.np) == ("hostfile", (), 0)
    assert [(each.role, each.index) for each in spec.replicas] == [("host", at) for at in range(len(spec.replicas))]
    return [(each.host, each.slots) for each in spec.replicas]


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        (OPEN_MPI, [("foo.example.com", 1), ("bar.example.com", 2), ("yow.example.com", 4), ("joe@bar", 1)]),
        (MPICH, [("host1", 1), ("host2", 2), ("host3", 4), ("joe@host4", 1)]),
        (INTEL, [("node1", 3), ("joe@node2", 2)]),
        (PBS, [("n1.cluster", 3), ("n2.cluster", 1)]),
        ("[fe80::1]:4\n[::1] slots=2\njoe@[2001:db8::7]\n", [("fe80::1", 4), ("::1", 2), ("joe@2001:db8::7", 1)]),
        ("a : 2\r\n\r\n  b\tslots\t=\t3\r\n", [("a", 2), ("b", 3)]),
        ("10.0.0.1 cpu=2\n10.0.0.2 count=3\n", [("10.0.0.1", 2), ("10.0.0.2", 3)]),
        ("w-0.train.ns.svc slots=0008\n", [("w-0.train.ns.svc", 8)]),
    ],
)
def test_spellings(text: str, wanted: list[tuple[str, int]]) -> None:
    assert hosts(text) == wanted


def test_slots_of_hosts_that_do_not_say() -> None:
    assert hosts("a\nb:3\na\n", slots=4) == [("a", 8), ("b", 3)]


def test_what_is_ignored_is_said() -> None:
    only = "is ignored, in {}: only a host, its user and its slots are used"
    assert hostfile.read(OPEN_MPI, "hosts").warnings == (
        f"hosts: max_slots {only.format('line 5')}",
        f"hosts: max-slots {only.format('line 6')}",
    )
    assert hostfile.read(INTEL, "m").warnings == (f"m: binding {only.format('lines 1 to 2')}",)
    assert hostfile.read(PBS, "hosts").warnings == ()


WRITE = "write host slots=4, host:4 or host."


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a\nb slot=2\n", "hosts:2:3: 'slot' is unknown here: did you mean 'slots'? allowed: slots, user, max_slots, port, boards, sockets, cores, binding, ifname, netmask."),
        ("a\n  b slots=none\n", f"hosts:2:11: 'none' is not a number of slots from 1 to 999999: {WRITE}"),
        ("a:0\n", f"hosts:1:3: '0' is not a number of slots from 1 to 999999: {WRITE}"),
        ("a:\n", f"hosts:1:3: the number of slots is missing: {WRITE}"),
        ("a:1000000\n", f"hosts:1:3: '1000000' is not a number of slots from 1 to 999999: {WRITE}"),
        ("a:٣\n", f"hosts:1:3: '٣' is not a number of slots from 1 to 999999: {WRITE}"),
        ("a:2 slots=2\n", f"hosts:1:1: 'a:2 slots=2' says its slots or its user twice: {WRITE}"),
        ("joe@a user=ann\n", f"hosts:1:1: 'joe@a user=ann' says its slots or its user twice: {WRITE}"),
        ("# c\n\na slots=2 and more # c\n", f"hosts:3:11: 'and more' is not understood: {WRITE}"),
        ("a,b\n", f"hosts:1:1: 'a,b' is not a host: {WRITE}"),
        (" -oProxyCommand=x\n", f"hosts:1:2: '-oProxyCommand=x' is not a host: {WRITE}"),
        ("a user=-oProxyCommand\n", f"hosts:1:8: '-oProxyCommand' is not a user's name: {WRITE}"),
        ("[a]:4\n", f"hosts:1:1: '[a]:4' is not a host: {WRITE}"),
        ("fe80::1 slots=4\n", "hosts:1:1: 'fe80::1' is not a host: an IPv6 address has brackets, as in [fe80::1]:4."),
        ("", "hosts:1:1: the hostfile names no host: write lines like `host slots=4`."),
        ("# none\n", "hosts:1:1: the hostfile names no host: write lines like `host slots=4`."),
    ],
)  # fmt: skip
def test_wrong_lines(text: str, said: str) -> None:
    with pytest.raises(JobError) as caught:
        hostfile.read(text, "hosts")
    assert str(caught.value) == said


def test_a_list_of_hosts() -> None:
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


@pytest.mark.parametrize("text", [OPEN_MPI, MPICH, INTEL, PBS, "localhost\n"])
def test_a_hostfile_is_told_from_its_text(text: str) -> None:
    assert formats.read(text, "hosts") == hostfile.read(text, "hosts")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a slots=1\nb slot=2\n", "hosts:2:3: 'slot' is unknown here: did you mean 'slots'?"),
        ("a slots=1\nb slots=two\n", "hosts:2:9: 'two' is not a number of slots from 1 to 999999:"),
    ],
)
def test_a_hostfile_with_a_slip_is_told_too(text: str, said: str) -> None:
    with pytest.raises(JobError) as caught:
        formats.read(text, "hosts")
    assert str(caught.value).startswith(said)


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
def test_other_texts_are_not_taken_for_hostfiles(text: str, name: str) -> None:
    assert not hostfile.matches(text, name)
