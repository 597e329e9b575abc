"""Membership of a cluster in virtual time: whatever order things happen in, requests are answered and ranks are whole.

What must hold with every action is asserted by hvdtest/virtual_cluster.py; here, who does what to whom, and the end.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import pytest
from hvdtest.virtual_cluster import VirtualCluster

from hvd_kernel.cluster.ranks import events as e
from hvd_kernel.cluster.ranks.changes import Rejoin, Resize, ResizeOutcome, Respawned
from hvd_kernel.cluster.ranks.membership import ClusterState, Membership
from hvd_kernel.cluster.ranks.procedure import Procedure
from hvd_kernel.cluster.ranks.rank_table import RankTable
from hvd_kernel.cluster.requests.gather import Handshake
from hvd_kernel.processes.channel import messages

WISH = messages.Detach("name", "place", 4, 1.0)
MOST = 8  # ranks
TROUBLE_S = 60.0  # for so long faults come


def started(n: int, seed: int = 0) -> VirtualCluster:
    world = VirtualCluster(n, seed)
    world.start()
    request = world.request(e.StartRequested)
    world.run()
    assert world.answers[request] == [e.Done(request)]
    return world


def test_failed_introduction_of_a_rank_fails_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    world = VirtualCluster(2, 0)
    refused = {"error": "RuntimeError: can't start new thread", "here": False}
    monkeypatch.setattr(world, "_introduce", lambda ticket, rank: world.deliver(e.RankAnswered(ticket, rank, refused)))
    world.start()
    request = world.request(e.StartRequested)
    world.run()
    failed = answer(world, request)
    assert isinstance(failed, e.Failed)
    assert failed.reason == "rank 0 cannot work: RuntimeError: can't start new thread"


def test_error_instead_of_a_greeting_is_passed_on() -> None:
    reported = []
    hands = Handshake([0, 1], ["shell", "control"], lambda rank, said: reported.append((rank, said)))
    who = {"pid": 7, "host": "here", "device": "cpu"}
    hands.on_reply(1, {"error": "MemoryError: "}, [])
    for channel in ("shell", "control"):
        hands.on_reply(0, who | {"channel": channel}, [])
    hands.on_output(0, "status", {})
    assert reported == [(1, {"error": "MemoryError: "}), (0, who | {"channel": "control"})]


def answer(world: VirtualCluster, request: int) -> e.Done | e.Failed:
    [only] = world.answers[request]
    return only


def ask_for_something(world: VirtualCluster) -> None:
    choose = world.random
    if choose.random() < 0.1:
        request = world.request(e.DetachRequested, WISH, 1)
    elif choose.random() < 0.4:
        drop = (
            frozenset(choose.sample(range(world.n), choose.randint(0, world.n - 1)))
            if choose.random() < 0.4
            else frozenset()
        )
        n = world.n - len(drop) if drop else choose.randint(1, MOST)
        request = world.request(e.ResizeRequested, n, drop, in_cell=not drop and choose.random() < 0.3)
    else:
        ranks = frozenset(choose.sample(range(world.n), choose.randint(1, world.n)))
        request = world.request(
            e.ReplaceRequested,
            choose.choice([None, None, None, ranks]),
            force=choose.random() < 0.3,
            in_cell=choose.random() < 0.2,
        )
    if choose.random() < 0.3:
        world.later(choose.uniform(0.0, 3.0), lambda: world.deliver(e.Cancelled(request)))


def harm(world: VirtualCluster) -> None:
    living = [each for each in world.processes if each.alive]
    if living:
        arriving = [each for each in living if each.generation == -1 and world.random.random() < 0.5]
        victim = world.random.choice(arriving or living)
        if world.random.random() < 0.2:
            victim.stopped_until = world.now + world.random.uniform(0.0, 20.0)
        else:
            world.kill(victim)
            if world.random.random() < 0.8:
                world.later(world.random.uniform(0.0, 4.0), partial(ask_for_something, world))
                world.later(world.random.uniform(0.0, 5.0), partial(harm, world))


def explore(seed: int) -> VirtualCluster:
    """Simulate a random minute; then repair all that can be repaired, and stop."""
    world = VirtualCluster(1 + seed % 7, seed)
    choose = world.random
    world.start()
    world.request(e.StartRequested)
    for _ in range(choose.randint(0, 6)):
        world.later(choose.uniform(2.0, TROUBLE_S), partial(ask_for_something, world))
    for _ in range(choose.choice([1, 1, 2, 3, 6])):
        world.later(choose.uniform(0.0 if choose.random() < 0.1 else 4.0, TROUBLE_S), partial(harm, world))
    if choose.random() < 0.05:
        world.later(choose.uniform(0.0, TROUBLE_S), world.end_supervisor)
    if choose.random() < 0.05:
        world.later(choose.uniform(0.0, TROUBLE_S), world.stop)
    world.run()
    world.lossy = False
    assert_whole_or_explained(world)
    world.stop()
    world.deliver(e.Stopped())
    assert world.membership.state is ClusterState.DOWN
    assert {number: len(each) for number, each in world.answers.items()} == dict.fromkeys(world.answers, 1)
    return world


def is_resized(told: e.Done | e.Failed) -> bool:
    return isinstance(told, e.Done) and isinstance(told.value, ResizeOutcome)


def explore_all(seeds: range) -> list[VirtualCluster]:
    return [explore(seed) for seed in seeds]


def assert_whole_or_explained(world: VirtualCluster) -> None:
    """Replace dead ranks: all ranks live in one communicator, or no rank is left, or the cluster is down."""
    assert [len(each) for each in world.answers.values()] == [1] * len(world.answers), "somebody waits forever"
    if world.membership.state in {ClusterState.DOWN, ClusterState.STOPPING}:
        return
    mended = world.request(e.ReplaceRequested, None)
    world.run()
    told = answer(world, mended)
    if isinstance(told, e.Failed):
        assert "dead, so there is nothing to continue from" in told.reason
        assert world.membership.ranks.dead == set(range(world.n))
        return
    assert world.membership.state is ClusterState.READY
    members = world.membership.ranks.members
    living = [(each.rank, each.pid, each.generation) for each in world.processes if each.alive]
    assert sorted(living) == [(rank, members[rank].pid, world.generation) for rank in range(world.n)]
    assert not world.membership.ranks.bare


@pytest.mark.parametrize("batch", [0, *(pytest.param(each, marks=pytest.mark.nightly) for each in range(1, 20))])
def test_random_events_in_any_order(batch: int) -> None:
    ends = explore_all(range(300 * batch, 300 * (batch + 1)))
    assert sum(world.generation > 1 for world in ends) > 60, "too little happens to find anything"
    resized = [told.value for world in ends for [told] in world.answers.values() if is_resized(told)]
    assert sum(each.n > each.before for each in resized) > 20, "too little grows"
    assert sum(each.n < each.before for each in resized) > 20, "too little shrinks"
    assert sum(any(before != now for before, now in each.numbers.items()) for each in resized) > 10, (
        "who gets another number?"
    )


def test_resize_on_other_hosts_is_refused_with_a_remedy() -> None:
    world = started(3)
    world.membership.ranks.here.discard(2)
    for in_cell in (False, True):
        request = world.request(e.ResizeRequested, 4, in_cell=in_cell)
        world.run()
        told = answer(world, request)
        assert isinstance(told, e.Failed)
        assert told.reason == (
            "rank 2 runs on another host, held by mpiexec, which adds no ranks: `%%hvdrun -np 4` between cells starts all ranks "
            "again, with what hvd_kernel.keep has named"
        )
    assert (world.n, world.membership.state) == (3, ClusterState.READY)


def test_resize_in_a_cell_drops_the_highest_ranks() -> None:
    """Rank 1 is younger than rank 2, and rank 0 dies meanwhile: between cells both would have other numbers."""
    world = started(4)
    world.kill(world.living(1)[0])
    world.run()
    world.request(e.ReplaceRequested, None)
    world.run()
    before = {rank: world.living(rank)[0].pid for rank in range(4)}
    world.kill(world.living(0)[0])
    world.run()
    request = world.request(e.ResizeRequested, 2, in_cell=True)
    world.run()
    told = answer(world, request)
    assert isinstance(told, e.Done)
    assert (told.value.left, told.value.numbers, told.value.respawned.ranks) == ((2, 3), {1: 1}, (0,))
    assert world.living(1)[0].pid == before[1]
    assert (world.generation, world.membership.state) == (2, ClusterState.READY)
    request = world.request(e.ResizeRequested, 3, in_cell=True)
    world.run()
    told = answer(world, request)
    assert isinstance(told, e.Done)
    assert (told.value.left, told.value.numbers, told.value.respawned.ranks) == ((), {0: 0, 1: 1}, (2,))


def test_death_at_a_resize_is_reported_before_renumbering() -> None:
    """The rank last reported that it waits: the cell counted it as a member, and asked its successor to continue within it."""
    world = started(2)
    done: list[e.Action] = []
    check = world.check
    world.check = lambda action: (done.append(action), check(action))[1]  # type: ignore[method-assign]
    world.kill(world.living(1)[0])
    request = world.request(e.ResizeRequested, 3, in_cell=True)
    world.run()
    assert isinstance(answer(world, request), e.Done)
    forgotten = next(at for at, action in enumerate(done) if isinstance(action, e.Forget) and 1 in action.ranks)
    assert forgotten < next(at for at, action in enumerate(done) if isinstance(action, e.Renumber))


def test_start_reports_progress() -> None:
    world = VirtualCluster(3, 1)
    progress: list[str] = []
    world.on_reportprogress = lambda action: progress.append(action.text)  # type: ignore[method-assign]
    world.start()
    world.request(e.StartRequested)
    assert world.membership.state is ClusterState.STARTING
    world.run()
    assert progress == [
        "controller ready, ranks are importing",
        "1 of 3 ranks ready",
        "2 of 3 ranks ready",
        "3 ranks ready",
    ]
    assert world.membership.state is ClusterState.READY
    assert [who.rank for who in world.membership.ranks.status({})] == [0, 1, 2]


@pytest.mark.parametrize(
    ("event", "why"),
    [
        (messages.RankExited(-1, 7), "the ranks ended while they started (mpiexec's status 7)."),
        (messages.ChannelClosed(), "the ranks ended while they started (mpiexec's status unknown)."),
        (None, "ranks 0-1 did not come up within 120 s (ClusterSpec.start_timeout_s)."),
    ],
)
def test_failed_start_reports_the_log(event: messages.Message | None, why: str) -> None:
    world = VirtualCluster(2, 0)
    world.soon(lambda: world.deliver(messages.Connected({})))
    request = world.request(e.StartRequested)
    if event is not None:
        world.later(1.0, lambda: world.deliver(event))
    world.run()
    assert answer(world, request) == e.Failed(request, why, with_log=True)
    assert world.membership.state is ClusterState.DOWN


def test_replacement_gets_kept_state_from_the_lowest_rank() -> None:
    world = started(3)
    world.kill(world.living(0)[0])
    world.run()
    assert world.membership.state is ClusterState.BROKEN
    request = world.request(e.ReplaceRequested, None, restore=("y",))
    assert world.membership.state is ClusterState.REPLACING
    world.run()
    assert answer(world, request) == e.Done(request, Respawned((0,), 1, ("y", "x")))
    assert (world.generation, world.membership.state) == (1, ClusterState.READY)


def test_death_notice_names_a_process_not_its_replacement() -> None:
    world = started(2)
    before = world.living(1)[0]
    world.kill(before)
    world.run()
    world.request(e.ReplaceRequested, None)
    world.run()
    world.deliver(e.RankProcessEnded(1, before.pid))
    assert world.membership.state is ClusterState.READY
    world.deliver(e.RankProcessEnded(1, world.living(1)[0].pid))
    assert world.membership.state is ClusterState.BROKEN


def test_concurrent_requests_fail_and_a_stop_ends_waiting_ones() -> None:
    world = started(2)
    first = world.request(e.DetachRequested, WISH, 1)
    second = world.request(e.ReplaceRequested, None)
    assert answer(world, second) == e.Failed(second, "the ranks are being kept")
    world.deliver(e.Cancelled(second))
    assert not world.answers[first]
    world.stop()
    assert answer(world, first) == e.Failed(first, "the cluster was stopped")
    third = world.request(e.ReplaceRequested, None)
    assert answer(world, third) == e.Failed(third, "the ranks are being stopped")


def test_reconnect_tells_silent_ranks_from_dead_ones() -> None:
    world = started(4)
    known = world.membership.ranks
    for rank, harmed in enumerate(world.living(rank)[0] for rank in range(4)):
        if rank == 1:
            harmed.stopped_until = float("inf")
        elif rank == 2:
            world.kill(harmed)
    later = VirtualCluster(4, 1)
    later.processes, later.lossy = world.processes, False
    later.membership.ranks.members, later.membership.ranks.here = known.members, known.here
    for rank in (0, 1, 2):
        later.deliver(e.EngineRegistered(rank))
    request = later.request(e.AttachRequested)
    later.run()
    assert answer(later, request) == e.Done(request, (1,))
    assert later.membership.ranks.dead == {2, 3}
    assert later.membership.state is ClusterState.BROKEN


def pids(world: VirtualCluster) -> list[int]:
    """Who is each rank."""
    return [world.living(rank)[0].pid for rank in range(world.n)]


def resized(world: VirtualCluster, n: int, *drop: int) -> ResizeOutcome:
    request = world.request(e.ResizeRequested, n, frozenset(drop))
    assert world.membership.state is ClusterState.RESIZING
    world.run()
    told = answer(world, request)
    assert isinstance(told, e.Done), told
    assert world.membership.state is ClusterState.READY
    return told.value


def test_growth_keeps_ranks_and_gives_new_ones_kept_state() -> None:
    world = started(2)
    before = pids(world)
    done = resized(world, 4)
    assert done == ResizeOutcome(2, 4, (), {0: 0, 1: 1}, Respawned((2, 3), 0, ("x",)))
    assert pids(world)[:2] == before
    assert (world.n, world.generation) == (4, 1)


def test_shrink_drops_dead_then_newest_and_keeps_the_order() -> None:
    world = started(5)
    for rank in (0, 3):
        world.kill(world.living(rank)[0])
    world.run()
    world.request(e.ReplaceRequested, frozenset({0, 3}))
    world.run()
    before = pids(world)
    world.kill(world.living(1)[0])
    world.run()
    done = resized(world, 3)
    assert done == ResizeOutcome(5, 3, (1, 3), {0: 0, 2: 1, 4: 2})
    assert pids(world) == [before[0], before[2], before[4]]
    assert [each.generation for each in world.processes if each.alive] == [world.generation] * 3


def test_survivors_keep_their_order_after_a_forced_respawn() -> None:
    world = started(2)
    world.request(e.ReplaceRequested, frozenset({0}), force=True)
    world.run()
    resized(world, 3)
    before = pids(world)
    assert resized(world, 2) == ResizeOutcome(3, 2, (2,), {0: 0, 1: 1})
    assert pids(world) == before[:2]


def test_named_ranks_are_removed_and_the_others_keep_order() -> None:
    world = started(4)
    before = pids(world)
    assert resized(world, 2, 0, 3) == ResizeOutcome(4, 2, (0, 3), {1: 0, 2: 1})
    assert pids(world) == before[1:3]
    world.deliver(e.RankProcessEnded(2, before[2]))
    assert world.membership.ranks.dead == {1}, "a process is known by its pid, whatever its number was"


def test_waiting_ranks_of_a_cell_rejoin_without_a_death() -> None:
    world = started(2)
    world.on_awaitcell = lambda _: pytest.fail("the cell is not to end")  # type: ignore[method-assign]
    request = world.request(e.ReplaceRequested, None, in_cell=True)
    world.run()
    assert answer(world, request) == e.Done(request, Respawned((), 0))
    assert {each.generation for each in world.processes} == {world.generation} == {1}


def test_a_cancelled_growth_is_undone_at_every_step() -> None:
    """Fault row B2: an interrupt while ranks are added."""
    before = pids(started(2))
    for steps in range(10_000):
        world = started(2)
        request = world.request(e.ResizeRequested, 4)
        for _ in range(steps):
            world.step()
        if world.answers[request]:
            break
        world.deliver(e.Cancelled(request))
        assert answer(world, request) == e.Failed(request, "cancelled")
        world.run()
        assert (world.n, world.membership.ranks.dead, pids(world)) == (2, set(), before)
        world.request(e.ReplaceRequested, None)
        world.run()
        assert (world.membership.state, world.n, pids(world)) == (ClusterState.READY, 2, before)
    assert steps > 10


def test_cancelled_shrink_keeps_ranks_not_yet_asked_to_leave() -> None:
    sizes = set()
    for steps in range(10_000):
        world = started(4)
        request = world.request(e.ResizeRequested, 2)
        for _ in range(steps):
            world.step()
        if world.answers[request]:
            break
        world.deliver(e.Cancelled(request))
        world.run()
        sizes.add(world.n)
        assert not world.membership.ranks.dead
        world.request(e.ReplaceRequested, None)
        world.run()
        assert (world.membership.state, len(pids(world))) == (ClusterState.READY, world.n)
    assert sizes == {2, 4}


def test_smaller_cluster_is_not_ready_before_its_rendezvous() -> None:
    world = started(4)
    request = world.request(e.ResizeRequested, 2)
    while world.n == 4:
        world.step()
    world.deliver(e.Cancelled(request))
    assert (world.membership.state, world.membership.ranks.dead) == (ClusterState.BROKEN, set())
    world.request(e.ReplaceRequested, None)
    world.run()
    assert world.membership.state is ClusterState.READY
    assert {each.generation for each in world.processes if each.alive} == {world.generation}


def test_process_joining_a_removed_place_is_ignored() -> None:
    world = started(2)
    world.deliver(messages.RanksJoining({1: 4711, 3: 4712}))
    assert not world.membership.ranks.arrivals
    assert world.membership.state is ClusterState.READY


@pytest.mark.parametrize(
    ("n", "drop", "why"),
    [
        (1, {1}, "no rank would be left to continue from: "),
        (3, set(), "rank 0 is not answering: `%hvd stacks` shows where, `%hvd respawn 0 --force` replaces it"),
    ],
)
def test_refused_requests_change_nothing(n: int, drop: set[int], why: str) -> None:
    world = started(2)
    world.living(0)[0].stopped_until = world.now + 30.0
    if drop:
        world.kill(world.living(0)[0])
        world.run()
    request = world.request(e.ResizeRequested, n, frozenset(drop))
    world.run()
    told = answer(world, request)
    assert isinstance(told, e.Failed)
    assert told.reason.startswith(why)
    assert (world.n, len(world.living(1))) == (2, 1)


def deaf_note(self: Membership, event: e.Event) -> Iterator[e.Action]:
    """Drop all notices of joining ranks."""
    return (action for action in NOTE(self, event) if not isinstance(action, e.WatchRank))


NOTE = Membership._record


@pytest.mark.parametrize(
    ("where", "name", "mutant"),
    [
        (Membership, "_record", deaf_note),
        (Rejoin, "_check_alive", lambda _self, _dead: None),
        (Rejoin, "_died", lambda _self, _dead: False),
        (Procedure, "is_over", lambda _self, _timer: False),
        (Membership, "_give_up", lambda *_: iter(())),
        (Resize, "_dismiss", lambda _self, _leaving: iter(())),
        (RankTable, "rank_of", lambda _self, _pid: -1),
    ],
)
def test_seeded_bug_is_found(where: type, name: str, mutant: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(where, name, mutant)
    with pytest.raises(AssertionError):
        explore_all(range(300))
