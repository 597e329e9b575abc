"""Assignment of ranks, and the blacklist: pure functions, by properties and by Horovod's own cases."""

from __future__ import annotations

from itertools import pairwise
from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hvd_kernel.launch.elastic.assignment import Assignment, Living, assign
from hvd_kernel.launch.elastic.blacklist import PERMANENTLY, Blacklist, cooldown
from hvd_kernel.launch.placement import Host


@st.composite
def situations(draw: st.DrawFn) -> dict[str, object]:
    hosts = [Host(name, draw(st.integers(1, 4))) for name in draw(st.permutations("abcd"))[: draw(st.integers(0, 4))]]
    slots = [(name, slot) for name in "abcde" for slot in range(5)]
    taken = draw(st.lists(st.sampled_from(slots), unique=True, max_size=10))
    living = [Living(number, *slot, draw(st.integers(0, 3))) for number, slot in enumerate(taken)]
    blocked = draw(st.sets(st.sampled_from(slots), max_size=4))
    return {"living": living, "hosts": hosts, "max_np": draw(st.none() | st.integers(0, 8)), "blocked": blocked}


def age(living: list[Living], worker: int | None) -> float:
    return next((each.joined or inf for each in living if each.worker == worker), inf)


@given(situations())
def test_every_usable_slot_has_one_rank_up_to_the_limit(given_: dict) -> None:
    found = assign(**given_)
    usable = {(host.name, slot) for host in given_["hosts"] for slot in range(host.slots)} - given_["blocked"]
    limit = len(usable) if given_["max_np"] is None else min(given_["max_np"], len(usable))
    assert [each.rank for each in found.ranks] == list(range(limit))
    assert len({(each.host, each.slot) for each in found.ranks} & usable) == limit


@given(situations())
def test_workers_keep_their_slots_and_older_ones_are_preferred(given_: dict) -> None:
    found, living = assign(**given_), given_["living"]
    where = {each.worker: (each.host, each.slot) for each in living}
    assert all(where[each.worker] == (each.host, each.slot) for each in found.ranks if each.worker is not None)
    assert found.workers | set(found.leave) == set(where)
    assert not found.workers & set(found.leave)
    usable = {(host.name, slot) for host in given_["hosts"] for slot in range(host.slots)} - given_["blocked"]
    without_room = [age(living, each) for each in found.leave if where[each] in usable]
    assert max((age(living, each) for each in found.workers), default=0) <= min(without_room, default=inf)
    if without_room:
        assert not found.empty, "nobody is started while somebody living has no room"


@given(situations())
def test_the_oldest_is_rank_0_and_hosts_are_contiguous(given_: dict) -> None:
    found, living = assign(**given_), given_["living"]
    ages = [age(living, each.worker) for each in found.ranks]
    assert not ages or ages[0] == min(ages)
    names = [each.host for each in found.ranks]
    order = list(dict.fromkeys(names))
    assert names == [name for name in order for each in names if each == name]
    listed = [host.name for host in given_["hosts"]]
    first = {name: min(each for each, other in zip(ages, names, strict=True) if other == name) for name in order}
    assert order == sorted(order, key=lambda name: (first[name], listed.index(name)))
    for one, other in pairwise(found.ranks[1:]):
        if one.host == other.host:
            assert one.local_rank < other.local_rank


@given(situations())
def test_local_and_cross_numbers_are_those_of_the_ranks(given_: dict) -> None:
    found = assign(**given_)
    names = [each.host for each in found.ranks]
    for name in names:
        assert sorted(each.local_rank for each in found.ranks if each.host == name) == [*range(names.count(name))]
    for each in found.ranks:
        assert each.local_size == names.count(each.host)
        beside = [other.host for other in found.ranks if other.local_rank == each.local_rank]
        assert (each.cross_rank, each.cross_size) == (beside.index(each.host), len(beside))


@given(situations())
def test_local_rank_is_the_slot_if_possible(given_: dict) -> None:
    found = assign(**given_)
    for each in found.ranks:
        assert each.local_rank == each.slot or each.slot >= each.local_size


@given(situations(), st.data())
def test_a_death_on_full_hosts_changes_no_local_rank(given_: dict, data: st.DataObject) -> None:
    given_ |= {"living": [], "max_np": None, "blocked": ()}
    before = assign(**given_)
    living = [Living(each.rank, each.host, each.slot, 1) for each in before.ranks]
    left = [each for each in living if data.draw(st.booleans())]
    after = assign(left, given_["hosts"])
    assert {(each.host, each.slot): each.local_rank for each in after.ranks} == {
        (each.host, each.slot): each.slot for each in before.ranks
    }
    stay = {each.worker: each for each in after.ranks if each.worker is not None}
    for one, other in pairwise(sorted(stay)):
        if 0 not in {stay[one].rank, stay[other].rank} and stay[one].host == stay[other].host:
            assert stay[one].rank < stay[other].rank, "those of a host keep their order"


@given(situations())
def test_assignment_is_stable_once_applied(given_: dict) -> None:
    found = assign(**given_)
    now = [Living(each.rank, each.host, each.slot, 1) for each in found.ranks]
    again = assign(now, given_["hosts"], given_["max_np"], given_["blocked"])
    assert (again.leave, again.empty) == ((), [])
    assert {(each.host, each.slot) for each in again.ranks} == {(each.host, each.slot) for each in found.ranks}


# Horovod's rank_and_size, with_host_failure, with_host_added and order_available_hosts.


def ranks(found: Assignment) -> list[tuple[int, ...]]:
    return [(each.rank, each.local_rank, each.local_size, each.cross_rank, each.cross_size) for each in found.ranks]


def settled(found: Assignment, joined: int = 1) -> list[Living]:
    """The workers of an assignment, each in its slot."""
    return [Living(each.rank, each.host, each.slot, joined) for each in found.ranks]


TWO = [Host("host-1", 2), Host("host-2", 2)]


def test_two_hosts_of_two_slots() -> None:
    assert ranks(assign([], TWO)) == [(0, 0, 2, 0, 2), (1, 1, 2, 0, 2), (2, 0, 2, 1, 2), (3, 1, 2, 1, 2)]


def test_when_a_host_fails_the_others_keep_their_local_ranks() -> None:
    assert ranks(assign(settled(assign([], TWO))[:2], TWO[:1])) == [(0, 0, 2, 0, 1), (1, 1, 2, 0, 1)]


def test_when_a_host_is_added_the_others_keep_their_ranks() -> None:
    found = assign(settled(assign([], TWO[:1])), TWO)
    assert [each.worker for each in found.ranks] == [0, 1, None, None]
    assert [(each.host, each.slot) for each in found.empty] == [("host-2", 0), ("host-2", 1)]


def test_remaining_hosts_come_first() -> None:
    before = settled(assign([], [Host(name, 1) for name in "abc"]))
    found = assign(before[1:], [Host(name, 1) for name in "bcd"])
    assert [each.host for each in found.ranks] == ["b", "c", "d"]


def test_uneven_hosts() -> None:
    found = assign([], [Host("a", 1), Host("b", 3), Host("c", 2)])
    assert [(each.host, each.local_rank, each.cross_rank, each.cross_size) for each in found.ranks] == [
        ("a", 0, 0, 3),
        *(("b", 0, 1, 3), ("b", 1, 0, 2), ("b", 2, 0, 1)),
        *(("c", 0, 2, 3), ("c", 1, 1, 2)),
    ]


def test_a_new_process_in_slot_0_is_not_rank_0() -> None:
    found = assign([Living(1, "a", 1, 1), Living(2, "b", 0, 2)], [Host("a", 2), Host("b", 1)])
    assert [(each.host, each.slot, each.worker) for each in found.ranks] == [("a", 1, 1), ("a", 0, None), ("b", 0, 2)]


# Blacklist.


def fails(blacklist: Blacklist, *slots: tuple[str, int], now: float = 0.0, size: int = 2) -> list[str]:
    return [blacklist.fail(slot, size, now) for slot in slots]


def test_failures_exclude_a_slot_and_then_its_host() -> None:
    blacklist = Blacklist(None, None, 2, lambda: 0.0)
    assert fails(blacklist, ("a", 0), ("a", 0)) == ["", ""]
    assert fails(blacklist, ("a", 0)) == [f"slot 0 of a is left out {PERMANENTLY}"]
    assert blacklist.out(1e9) == {("a", 0)}
    assert fails(blacklist, ("a", 1), ("a", 1), ("a", 1)) == ["", "", f"a is left out {PERMANENTLY}"]
    assert blacklist.out(1e9) == {"a"}


def test_host_of_one_slot_is_excluded_with_it() -> None:
    blacklist = Blacklist(None, 1, 2, lambda: 0.0)
    assert fails(blacklist, ("a", 0), size=1) == [f"a is left out {PERMANENTLY}"]


def test_limit_of_one_failure_equals_horovods_rule() -> None:
    blacklist = Blacklist(None, 1, 1, lambda: 0.0)
    assert fails(blacklist, ("a", 1)) == [f"a is left out {PERMANENTLY}"]


def test_each_exclusion_is_longer() -> None:
    blacklist = Blacklist((10.0, 100.0), None, 9, lambda: 0.5)
    ends = []
    now = 0.0
    for _ in range(4):
        fails(blacklist, ("a", 0), now=now, size=9)
        fails(blacklist, ("a", 0), now=now + 1.0, size=9)
        now = blacklist.next_return(now)
        assert not blacklist.out(now)
        ends.append(now)
    assert ends == [25.0, 25.0 + 45.0, 70.0 + 85.0, 155.0 + 100.0]
    assert blacklist.next_return(now) == inf


@given(st.integers(1, 10_000), st.floats(1, 100), st.floats(0, 3500), st.floats(0, 1))
def test_cooldown_is_in_its_range_and_longer_each_time(times: int, least: float, more: float, chance: float) -> None:
    most = least + more
    found = cooldown(times, least, most, chance)
    assert least <= found <= most
    assert cooldown(times + 1, least, most, 0.0) >= cooldown(times, least, most, 1.0) or found == most


def test_rediscovered_lost_host_counts_as_a_new_host() -> None:
    blacklist = Blacklist(None, None, 2, lambda: 0.0)
    assert blacklist.lose("a", 0.0) == f"a is left out {PERMANENTLY}"
    blacklist.update(["a", "b"])
    assert blacklist.out(1.0) == {"a"}
    blacklist.update(["b"])
    assert blacklist.out(1.0) == set()


@pytest.mark.parametrize("failures", [1, 2])
def test_cooldown_resets_the_failures_of_a_slot(failures: int) -> None:
    blacklist = Blacklist((1.0, 60.0), failures, 9, lambda: 0.0)
    for _ in range(failures - 1):
        assert fails(blacklist, ("a", 0), size=9) == [""]
    assert fails(blacklist, ("a", 0), size=9) != [""]
    later = blacklist.next_return(0.0)
    assert [bool(text) for text in fails(blacklist, *[("a", 0)] * failures, now=later, size=9)] == [
        *[False] * (failures - 1),
        True,
    ]


def test_ranks_of_a_machine_with_two_names_are_adjacent() -> None:
    hosts = [Host("a/0", 1, "a"), Host("b/1", 1, "b"), Host("a/2", 1, "a")]
    found = assign([Living(7, "b/1", 0, joined=1)], hosts)
    told = [(each.host, each.worker, each.local_rank, each.local_size) for each in found.ranks]
    assert told == [("b/1", 7, 0, 1), ("a/0", None, 0, 2), ("a/2", None, 1, 2)]
    assert [(each.cross_rank, each.cross_size) for each in found.ranks] == [(0, 2), (1, 2), (0, 1)]
