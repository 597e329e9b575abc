"""Replacement of a dead rank: the others keep their variables, collectives work again, kept state is sent."""

from __future__ import annotations

import contextlib
import hashlib
import os
import signal
import threading
from pathlib import Path

import numpy as np
import psutil
import pytest
import zmq
from hvdtest.cluster import (
    cpu_share,
    drain,
    execute,
    processes_below,
    spares_of,
    until,
    wait_for_spares,
    wait_until_all_speak,
)
from hvdtest.kernel import Kernel

from hvd_kernel.cluster import Session
from hvd_kernel.cluster.failure import log_tail
from hvd_kernel.cluster.ranks.changes import Rejoin, Respawned
from hvd_kernel.cluster.ranks.events import Action, Event
from hvd_kernel.cluster.ranks.procedure import Flow
from hvd_kernel.errors import ClusterError
from hvd_kernel.processes.channel.messages import RanksJoining, SetSpares

N = 4
BIG = "import numpy as np, hashlib\nbig = np.random.default_rng(rank).random(1 << 20)\nborn = rank"
pytestmark = [pytest.mark.jupyter, pytest.mark.mp, pytest.mark.cluster(N, setup=(BIG,))]
WITH_A_SPARE = pytest.mark.cluster(N, setup=(BIG,), env={"HVD_SPARES": "1"})
MODEL = """
import torch, hvd_kernel
torch.manual_seed(7)
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = torch.nn.Linear(8, 8)
        self.outer = torch.nn.Linear(8, 1)
    def forward(self, x):
        return self.outer(torch.relu(self.inner(x)))
model = Net()
opt = hvd.DistributedOptimizer(torch.optim.Adam(model.parameters(), lr=0.1), model.named_parameters(), op=hvd.Sum)
def step(seed):
    torch.manual_seed(100 * seed + rank)
    opt.zero_grad()
    model(torch.randn(4, 8)).pow(2).mean().backward()
    opt.step()
for seed in range(3):
    step(seed)
steps = 3
hvd_kernel.keep("model", "opt", "step", "steps")
"""
STATE = "[p.sum().item() for p in model.parameters()], [s['exp_avg'].sum().item() for s in opt.state.values()]"


def sha(rank: int) -> str:
    return hashlib.sha256(np.random.default_rng(rank).random(1 << 20).tobytes()).hexdigest()


def kill(session: Session, *ranks: int) -> None:
    for rank in ranks:
        os.kill(session.status()[rank].pid, signal.SIGKILL)
    until(lambda: set(ranks) <= set(session.dead))


def assert_whole(session: Session, fresh: set[int]) -> None:
    """Check that every rank is in its place, sums are exact on all, and survivors have their array, bit for bit."""
    code = (
        "import numpy as np\nfrom hvd_kernel.core import ops\n"
        "total = ops.allreduce(np.array([rank + 1, 1], np.int64), name='whole', op=ops.Sum).tolist()\n"
        "names = get_ipython().user_ns\n"
        "mine = __import__('hashlib').sha256(names['big'].tobytes()).hexdigest() if 'big' in names else None\n"
        "(get_ipython().kernel.engine_id, hvd.rank(), hvd.size(), rank, size, str(device), total, mine)"
    )
    found = execute(session, code).run.values()
    total = [N * (N + 1) // 2, N]
    assert found == {r: (r, r, N, r, N, "cpu", total, None if r in fresh else sha(r)) for r in range(N)}
    assert session.dead == ()
    assert [status.alive for status in session.status()] == [True] * N


@WITH_A_SPARE
def test_a2_killed_idle_rank_is_replaced_by_the_spare(
    session: Session,
) -> None:
    wait_for_spares(session, 1)
    (spare,) = spares_of(session)
    before = [status.pid for status in session.status()]
    kill(session, 2)
    with pytest.raises(ClusterError, match=r"rank 2 .*is dead.*`%hvd respawn`"):
        session.run("1")
    done = session.respawn()
    assert (done.ranks, done.source, done.restored, done.lost) == ((2,), 0, (), {})
    after = [status.pid for status in session.status()]
    assert after == [before[0], before[1], spare, before[3]], log_tail(session.executor.launched.log)
    assert execute(session, "import os; os.getpid()").run.values() == dict(enumerate(after))
    assert execute(session, "import sys; 'torch._dynamo' in sys.modules").run.values()[2]  # ready for an optimizer
    assert_whole(session, {2})


def test_a2_late_death_notice_spares_the_replacement(session: Session) -> None:
    """The late notice was applied to the awaited replacement; the hub dropped it, and the new process was stopped."""
    wire, membership, joining = session._wire, session.executor._membership, dict[int, int]()
    uuid, step = wire.uuids[2], membership.step
    kill(session, 2)

    def say(event: Event) -> list[Action]:
        actions = step(event)
        if isinstance(event, RanksJoining):
            joining.update(event.pids)
            late = wire.session.serialize(wire.session.msg("connection_reply", {"engines": {"2": uuid}}))
            wire._dispatch_single_reply([zmq.Frame(part) for part in late])
        return actions

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(membership, "step", say)
        assert session.respawn().ranks == (2,)
    assert {2: session.status()[2].pid} == joining
    assert_whole(session, {2})


def test_r5_rank_killed_in_a_collective_costs_others_nothing(session: Session) -> None:
    run = session.run("print('in', flush=True)\nhvd.barrier() if rank != 1 else __import__('time').sleep(600)")
    wait_until_all_speak(run)
    kill(session, 1)
    outcome = drain(run)
    assert {rank: failure.ename for rank, failure in outcome.failures.items()} == dict.fromkeys(range(N), "RankDied")
    assert session.respawn().ranks == (1,)
    assert_whole(session, {1})


@pytest.mark.parametrize(
    "victim",
    [
        pytest.param(2, id="rank 2", marks=pytest.mark.nightly),
        pytest.param(0, id="a5 rank 0"),
        pytest.param(1, id="rank 1", marks=pytest.mark.nightly),
    ],
)
def test_kept_state_comes_from_a_living_rank(session: Session, victim: int) -> None:
    execute(session, MODEL)
    kill(session, victim)
    done = session.respawn()
    source = 1 if victim == 0 else 0
    assert (done.ranks, done.source, done.restored) == ((victim,), source, ("model", "opt", "step", "steps"))
    assert_whole(session, {victim})
    states = execute(session, f"opt.param_groups[0]['params'][0] is model.inner.weight, steps, {STATE}").run.values()
    assert states[victim][:2] == (True, 3)
    assert [states[rank] for rank in range(N)] == [states[source]] * N
    trained = execute(session, f"for seed in range(3, 6): step(seed)\n{STATE}").run.values()
    assert [trained[rank] for rank in range(N)] == [trained[source]] * N
    assert trained[0] != states[0][2]


def test_requested_names_are_sent_and_unsendable_ones_named(session: Session) -> None:
    execute(session, "import threading\nlock, table = threading.Lock(), {'rank': rank}")
    kill(session, 3)
    done = session.respawn(restore=["table", "lock", "nowhere"])
    assert done.restored == ("table",)
    assert done.lost["nowhere"] == "is not defined there"
    assert "pickle" in done.lost["lock"]
    assert execute(session, "table['rank']").run.values() == {0: 0, 1: 1, 2: 2, 3: 0}


def test_a4_two_simultaneous_deaths(session: Session) -> None:
    kill(session, 0, 3)
    with pytest.raises(ClusterError, match=r"rank 0 is dead too: `%hvd respawn` alone"):
        session.respawn([3])
    assert session.respawn().ranks == (0, 3)
    assert_whole(session, {0, 3})


@pytest.mark.parametrize(
    "moment", [0.1, *(pytest.param(moment, marks=pytest.mark.nightly) for moment in (0.0, 0.3, 0.6))]
)
def test_a4_second_death_during_a_respawn_is_repaired(session: Session, moment: float) -> None:
    kill(session, 1)
    victim = session.status()[2].pid
    killer = threading.Timer(moment, os.kill, (victim, signal.SIGKILL))
    killer.start()
    first = session.respawn()
    killer.join()
    assert set(first.ranks) in ({1}, {1, 2})
    if first.ranks == (1,):
        until(lambda: session.dead == (2,))
        assert session.respawn().ranks == (2,)
    assert_whole(session, {1, 2})


@pytest.mark.nightly
def test_a4_a_replacement_that_dies_is_replaced(session: Session) -> None:
    kill(session, 2)
    fallen: list[int] = []
    membership = session.executor._membership
    step = membership.step

    def shoot(event: Event) -> list[Action]:
        actions = step(event)
        if isinstance(event, RanksJoining) and not fallen:
            fallen.append(event.pids[2])
            os.kill(fallen[0], signal.SIGKILL)
        return actions

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(membership, "step", shoot)
        assert session.respawn().ranks == (2,)
    assert session.status()[2].pid != fallen[0]
    assert_whole(session, {2})


def test_living_rank_is_replaced_only_by_force(session: Session) -> None:
    with pytest.raises(ClusterError, match=r"rank 2 is alive: `%hvd respawn 2 --force`"):
        session.respawn([2])
    with pytest.raises(ClusterError, match=r"no rank would be left to continue from: `%hvd restart`"):
        session.respawn(range(N), force=True)
    run = session.run("print('in', flush=True)\nhvd.barrier() if rank != 2 else __import__('time').sleep(600)")
    wait_until_all_speak(run)
    assert session.respawn([2], force=True).ranks == (2,)
    assert {rank: failure.ename for rank, failure in drain(run).failures.items()} == dict.fromkeys(range(N), "RankDied")
    assert_whole(session, {2})


SETS = """
import torch
hvd.init(process_sets="dynamic")
pair, tail, ends, gone = [hvd.add_process_set(ranks) for ranks in ([0, 1], [1, 2, 3], [0, 3], [2, 3])]
removed = hvd.remove_process_set(gone)
"""
SUMS = """
def total(one):
    mine = torch.tensor([2 ** rank])
    return hvd.allreduce(mine, name=str(one.ranks), op=hvd.Sum, process_set=one).item() if one.included() else None
[(one.ranks, one.process_set_id, total(one)) for one in (pair, tail, ends)], gone.process_set_id
"""
IN_SETS = {
    rank: (
        [
            ([0, 1], 1, 3 if rank in (0, 1) else None),
            ([1, 2, 3], 2, 14 if rank > 0 else None),
            ([0, 3], 3, 9 if rank in (0, 3) else None),
        ],
        None,
    )
    for rank in range(N)
}


def test_process_sets_work_after_a_failure_and_a_respawn(session: Session) -> None:
    execute(session, SETS)
    assert execute(session, SUMS).run.values() == IN_SETS
    failing = "if rank == 2: raise ValueError('on purpose')\nhvd.barrier(process_set=tail) if rank == 1 else None"
    outcome = execute(session, failing)
    assert {rank: failure.ename for rank, failure in outcome.failures.items()} == {1: "RankFailed", 2: "ValueError"}
    assert execute(session, SUMS).run.values() == IN_SETS
    kill(session, 1)
    done = session.respawn()
    assert (done.ranks, done.restored, done.lost) == ((1,), ("ends", "gone", "pair", "tail"), {})
    execute(session, "import torch")
    assert execute(session, SUMS).run.values() == IN_SETS
    again = "hvd.add_process_set(gone).ranks, [hvd.remove_process_set(one) for one in (gone, ends, pair, tail)]"
    assert execute(session, again).run.values() == dict.fromkeys(range(N), ([2, 3], [True] * 4))


def test_process_set_unknown_to_a_rank_is_not_added(session: Session) -> None:
    late = (
        "from hvd_kernel.core import process_set_registry\nhvd.init(process_sets='dynamic')\nhalf = hvd.add_process_set([0, 2])\n"
        "if rank == 3: del process_set_registry._registered[half.process_set_id]\n"  # as if its wait had been interrupted
        "hvd.barrier()\n"  # all have come to here before anybody is released by the failure
        "if rank == 3: raise ValueError('on purpose')"
    )
    assert execute(session, late).failures[3].evalue == "on purpose"
    assert execute(session, "half.process_set_id").run.values() == dict.fromkeys(range(N))
    assert execute(session, "hvd.add_process_set(half).ranks").run.values() == {r: [0, 2] for r in range(N)}
    assert execute(session, "hvd.remove_process_set(half)").run.values() == dict.fromkeys(range(N), True)


@pytest.mark.nightly
def test_a2_death_just_before_a_respawn_is_noticed(session: Session) -> None:
    os.kill(session.status()[2].pid, signal.SIGKILL)
    assert session.respawn().ranks == (2,)
    assert_whole(session, {2})
    assert session.respawn().ranks == ()


def test_stopped_rank_is_silent_rather_than_dead(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hvd_kernel.cluster.ranks.changes._SIGN_S", 0.5)
    stopped = psutil.Process(session.status()[3].pid)
    stopped.suspend()
    # One thread of it has to take its turn before all stop: until then the others may answer.
    until(lambda: stopped.status() == psutil.STATUS_STOPPED, "the rank stands still")
    try:
        done = session.respawn()
    finally:
        stopped.resume()
    assert 3 in done.silent
    assert done.ranks == ()
    assert_whole(session, set())


DEADLY = """
import os, signal, hvd_kernel
class Deadly:
    def __init__(self, packing, unpacking):
        self.packing, self.unpacking = packing, unpacking
    def __reduce__(self):
        strike(self.packing)
        return unpack, (self.packing, self.unpacking)
def strike(flags):
    for flag in filter(os.path.exists, flags):
        os.rmdir(flag)
        os.kill(os.getpid(), signal.SIGKILL)
def unpack(packing, unpacking):
    strike(unpacking)
    return Deadly(packing, unpacking)
deadly, steps = Deadly(PACKING, UNPACKING), rank * 10
hvd_kernel.keep("deadly", "steps")
"""


def arm(session: Session, packing: list[Path], unpacking: list[Path]) -> None:
    """Keep a variable of which a rank dies that packs, or unpacks, it: once for each of these folders."""
    for each in (*packing, *unpacking):
        each.mkdir()
    code = DEADLY.replace("UNPACKING", repr(list(map(str, unpacking)))).replace(
        "PACKING", repr(list(map(str, packing)))
    )
    assert execute(session, code).failures == {}


@pytest.mark.nightly
def test_a4_death_first_reported_by_peers_is_repaired(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    wire, lost, give = session._wire, session._wire._on_lost, Rejoin._restore_fresh

    def fail(_: Rejoin) -> Flow[Respawned]:
        monkeypatch.setattr(Rejoin, "_restore_fresh", give)
        os.kill(session.status()[3].pid, signal.SIGKILL)
        yield None
        raise ClusterError("kept: rank 0: rank 3 has ended")

    kill(session, 2)
    monkeypatch.setattr(wire, "_on_lost", lambda *who: wire.later(1.5, lost, *who))
    monkeypatch.setattr(Rejoin, "_restore_fresh", fail)
    assert session.respawn().ranks == (2, 3)
    assert_whole(session, {2, 3})


@pytest.mark.nightly
def test_a4_death_during_the_transfer_of_state_is_repaired(session: Session, tmp_path: Path) -> None:
    arm(session, [tmp_path / "once"], [])
    kill(session, 2)
    done = session.respawn()
    assert (done.ranks, done.source, done.restored, done.lost) == ((0, 2), 1, ("deadly", "steps"), {})
    assert list(tmp_path.iterdir()) == []
    assert execute(session, "steps").run.values() == {0: 10, 1: 10, 2: 10, 3: 30}
    assert_whole(session, {0, 2})


@pytest.mark.nightly
def test_a4_state_that_kills_replacements_is_left_out(session: Session, tmp_path: Path) -> None:
    arm(session, [], [tmp_path / "once", tmp_path / "twice"])
    kill(session, 1)
    done = session.respawn()
    why = "a rank died each time it was given; `%hvd respawn` tries again"
    assert (done.ranks, done.restored, done.lost) == ((1,), (), {"deadly": why, "steps": why})
    assert list(tmp_path.iterdir()) == []
    assert_whole(session, {1})
    done = session.respawn()
    assert (done.ranks, done.source, done.restored, done.lost) == ((1,), 0, ("deadly", "steps"), {})
    assert execute(session, "steps").run.values() == {0: 0, 1: 0, 2: 20, 3: 30}
    assert session.respawn().ranks == ()


def test_communication_broken_after_a_respawn_is_reset(session: Session) -> None:
    outcome = execute(session, "if rank == 1: raise ValueError('on purpose')\nhvd.barrier()")
    assert outcome.failures[1].ename == "ValueError"
    assert_whole(session, set())


def test_cell_may_shut_down_and_initialise_again(session: Session) -> None:
    code = "hvd.shutdown()\nhvd.init()\nhvd.rank(), hvd.size()"
    assert execute(session, code).run.values() == {rank: (rank, N) for rank in range(N)}


@WITH_A_SPARE
@pytest.mark.nightly
def test_missing_spare_is_replaced_by_a_new_process(session: Session) -> None:
    wait_for_spares(session, 1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(session, "_max_spares", 0)  # no spare is started meanwhile
        for pid in spares_of(session):
            os.kill(pid, signal.SIGKILL)
        until(lambda: session.spares == 0)
        kill(session, 3)
        said: list[str] = []
        assert session.respawn(progress=said.append).ranks == (3,)
    session.executor.launched.send(SetSpares(session._max_spares))
    assert said[0] == "no spare process is ready: starting one"
    assert_whole(session, {3})


@WITH_A_SPARE
@pytest.mark.nightly
def test_the_spare_waits_without_using_the_processor(session: Session) -> None:
    wait_for_spares(session, 1)
    (spare,) = spares_of(session)
    until(lambda: cpu_share({spare}, 1.0) <= 0.02, "it is quiet: it may have something to do still, who polls is never")


@pytest.mark.nightly
def test_s7_replacement_shows_no_key(session: Session) -> None:
    keys = [session._wire._config[name].encode() for name in ("key", "curve_serverkey")]
    kill(session, 1)
    assert session.respawn().ranks == (1,)
    assert b"hvd_kernel.worker\0now\0" in read(session.status()[1].pid, "cmdline")
    for pid in processes_below(session.executor.launched._process.pid):
        for name in ("cmdline", "environ"):
            assert not any(key in read(pid, name) for key in keys)
    for path in session.executor.launched.folder.rglob("*"):
        if path.is_file():
            assert not any(key in path.read_bytes() for key in keys)


def test_a6_death_of_all_ranks_is_reported(session: Session) -> None:
    kill(session, *range(N))
    with pytest.raises(ClusterError, match=r"all 4 ranks are dead.*`%hvd restart`"):
        session.respawn()


def read(pid: int, name: str) -> bytes:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/{name}").read_bytes()
    return b""


DIE = "%%hvdrun\nimport os, signal\nif rank == 1: os.kill(os.getpid(), signal.SIGKILL)"


KILL_AND_RESPAWN = """
import os, signal
session = __import__('hvd_kernel.magics').magics.manager_of(get_ipython()).session
os.kill(session.status()[1].pid, signal.SIGKILL)
%hvd respawn
"""


@pytest.mark.timeout(300)
def test_notebook_reports_the_variables_of_a_respawned_rank(tmp_path: Path) -> None:
    with Kernel(tmp_path) as kernel:
        kernel.run("%hvd start -np 2", timeout=120)
        assert kernel.run("%hvd respawn").text() == "no rank is dead\n"
        kernel.run("%%hvdrun\nimport hvd_kernel\na = [rank]; hvd_kernel.keep('a')")
        outcome = kernel.run(DIE, allow_error=True)
        assert outcome.reply["ename"] == "RankDied"
        assert "%hvd respawn" in outcome.reply["evalue"]
        assert kernel.run("%hvd respawn 1", timeout=120).stored == [
            {
                "type": "stream",
                "name": "stdout",
                "text": "rank 1 is fresh: it has a from rank 0; other variables are missing\n",
            }
        ]
        assert kernel.run("%%hvdrun\na").shown == ["[0-1] [0]"]
        in_one_cell = kernel.run(KILL_AND_RESPAWN, timeout=120).text()
        assert in_one_cell == "rank 1 is fresh: it has a from rank 0; other variables are missing\n"
        refused = kernel.run("%hvd respawn 1", allow_error=True).reply
        assert refused["evalue"] == "rank 1 is alive: `%hvd respawn 1 --force` kills and replaces it"
        forced = kernel.run("%hvd respawn 1 --force --restore b", timeout=120).text()
        assert forced == (
            "rank 1 is fresh: it has a from rank 0; other variables are missing\n"
            "`b` could not be restored: is not defined there\n"
        )
        kernel.run("%hvd start --respawn auto")
        kernel.run("%%hvdrun\nhvd_kernel.keep()", allow_error=True)
        kernel.run(DIE, allow_error=True)
        outcome = kernel.run("%%hvdrun\nhvd.size()", timeout=120)
        assert outcome.text().startswith("rank 1 is fresh: ")
        assert outcome.text().count("\n") == 1
        assert outcome.shown == ["[0-1] 2"]
        kernel.run("%hvd stop")
