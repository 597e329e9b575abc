"""Ranks on several hosts (network namespaces): topology, results, and refused connections.

By default test_hvdrun_hosts.py has two hosts, and test_names.py one without a name.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hvdtest.hosts import HostPool, Hosts, address, connected, why_not

pytestmark = [pytest.mark.nightly, pytest.mark.mp, pytest.mark.skipif(bool(why_not()), reason=why_not() or "none")]

SECRET = {"HVD_SECRET_KEY": "0123456789abcdef0123456789abcdef"}
LAYOUTS = {"2+2": [0, 0, 1, 1], "1+3": [0, 1, 1, 1], "0101": [0, 1, 0, 1], "2+1+1": [0, 0, 1, 2]}


@pytest.fixture(scope="module")
def hosts() -> Iterator[Hosts]:
    with Hosts(3) as all_of_them:
        yield all_of_them


@pytest.fixture(scope="module", params=LAYOUTS.values(), ids=LAYOUTS.keys())
def where(request: pytest.FixtureRequest) -> list[int]:
    return request.param


@pytest.fixture(scope="module")
def pool(hosts: Hosts, where: list[int]) -> Iterator[HostPool]:
    with HostPool(hosts, where, **SECRET) as ranks:
        yield ranks


def place() -> list[object]:
    import hvd_kernel.torch as hvd

    hvd.init()
    return [hvd.rank(), hvd.local_rank(), hvd.local_size(), hvd.cross_rank(), hvd.cross_size(), hvd.is_homogeneous()]


def test_topology(pool: HostPool, where: list[int]) -> None:
    counts = {host: where.count(host) for host in where}
    for rank, found in enumerate(pool.run(place)):
        local = where[:rank].count(where[rank])
        across = [r for r, host in enumerate(where) if where[:r].count(host) == local]
        same = len(set(counts.values())) == 1
        assert found == [rank, local, counts[where[rank]], across.index(rank), len(across), same]


def links() -> list[str]:
    import hvd_kernel.torch as hvd
    from hvd_kernel.core import session

    hvd.init()
    return [session.engine().transport_to(peer) for peer in range(hvd.size()) if peer != hvd.rank()]


def test_transports(pool: HostPool, where: list[int]) -> None:
    for rank, found in enumerate(pool.run(links)):
        others = [host for peer, host in enumerate(where) if peer != rank]
        assert found == ["shm" if host == where[rank] else "tcp" for host in others]


def values(sizes: list[int]) -> list[str]:
    """Check all values against those that each rank computes itself; return digests of the sums."""
    import hashlib

    import torch

    import hvd_kernel.torch as hvd

    hvd.init()
    me, n = hvd.rank(), hvd.size()
    digests = []
    for size in sizes:

        def given(rank: int, count: int = size) -> torch.Tensor:
            return (torch.arange(count) * 7 + 13 * rank) % 251

        total = hvd.allreduce(given(me), name=f"sum{size}", op=hvd.Sum)
        assert torch.equal(total, sum((given(r) for r in range(n)), torch.zeros(size, dtype=torch.int64)))
        rough = torch.sin(given(me).double() * (me + 1)).float()
        digests.append(hashlib.sha256(hvd.allreduce(rough, name=f"f{size}", op=hvd.Sum).numpy().tobytes()).hexdigest())
        mine = given(me, size + me)
        assert torch.equal(hvd.allgather(mine, name=f"g{size}"), torch.cat([given(r, size + r) for r in range(n)]))
        for root in range(n):
            assert torch.equal(hvd.broadcast(given(me), root, name=f"b{size}.{root}"), given(root))
    return digests


def test_values(pool: HostPool) -> None:
    found = pool.run(values, [0, 1, 3, 1000, 100_003, 1 << 20])
    assert all(digests == found[0] for digests in found)


def killed(failing: int, folder: str) -> list[object] | None:
    import torch

    import hvd_kernel.torch as hvd

    hvd.init()
    hvd.barrier()
    if hvd.rank() == failing:
        while len(list(Path(folder).iterdir())) < hvd.size() - 1:
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGKILL)
    threading.Thread(target=tell_that_it_waits, args=(Path(folder, str(hvd.rank())),), daemon=True).start()
    try:
        hvd.allreduce(torch.ones(1 << 22), name="never")
    except hvd.HorovodInternalError as error:
        return [type(error).__name__, error.rank]
    return None


def tell_that_it_waits(file: Path) -> None:
    from hvd_kernel.core import session

    while not session.engine().pending():
        time.sleep(0.01)
    file.touch()


@pytest.mark.parametrize("failing", [0, 3])
def test_a1_a_killed_rank_is_named_on_every_host(hosts: Hosts, tmp_path: Path, failing: int) -> None:
    with HostPool(hosts, [0, 0, 1, 1], **SECRET, HVD_NET_TIMEOUT="600") as mortal:  # so that no timeout reports it
        found = mortal.run(killed, failing, str(tmp_path), gone={failing: -9})
    assert found == [None if rank == failing else ["RankDied", failing] for rank in range(4)]


def loaded() -> None:
    import hvd_kernel.torch  # noqa: F401


def refused() -> str:
    import hvd_kernel.torch as hvd

    try:
        hvd.init()
    except (ValueError, hvd.HorovodInternalError) as error:
        return str(error)
    return "came in"


def test_without_a_secret_no_start_across_hosts(hosts: Hosts) -> None:
    with HostPool(hosts, [0, 1]) as pool:
        for text in pool.run(refused):
            assert "HVD_SECRET_KEY" in text
            assert "openssl rand" in text


def test_rank_with_another_secret_is_refused(hosts: Hosts) -> None:
    def secret(rank: int) -> dict[str, str]:
        return {"HVD_SECRET_KEY": "wrong" if rank == 1 else "right"}

    with HostPool(hosts, [0, 1], secret, HVD_START_TIMEOUT="12") as pool:  # rank 0 waits so long, rank 1 comes at once
        pool.run(loaded)  # so that they come together
        zero, one = pool.run(refused)
    assert "rank 1 did not come" in zero
    assert "HVD_SECRET_KEY" in zero
    assert "do not have the same secret" in one


def meeting(door: str) -> float:
    """Delay rank 1 until the file exists; return the time from then."""
    import torch

    import hvd_kernel.torch as hvd

    while os.environ["HOROVOD_RANK"] == "1" and not Path(door).exists():
        time.sleep(0.01)
    began = time.monotonic()
    hvd.init()
    took = time.monotonic() - began
    assert hvd.allreduce(torch.ones(3), name="x", op=hvd.Sum).tolist() == [2.0] * 3
    return took


def test_strangers_at_the_port_do_not_disturb(hosts: Hosts, tmp_path: Path) -> None:
    said: list[Callable[[int], bytes]] = [lambda _: b"", lambda n: os.urandom(n * 40), lambda _: b"half a hello"]
    door = tmp_path / "open"
    with HostPool(hosts, [0, 1], **SECRET, HVD_START_TIMEOUT="150") as pool, ThreadPoolExecutor(1) as aside:
        running = aside.submit(pool.run, meeting, str(door), timeout=200)
        strangers = []
        deadline = time.monotonic() + 100
        while len(strangers) < 80 and time.monotonic() < deadline and not running.done():
            stranger = connected(hosts, 2, (address(0), pool.port))
            if stranger is None:
                time.sleep(0.02)  # rank 0 is still starting
                continue
            strangers.append(stranger)
            stranger.sendall(said[len(strangers) % 3](len(strangers)))
        door.touch()
        took = running.result(220)
        for stranger in strangers:
            stranger.close()
    assert len(strangers) == 80, "rank 0 did not listen"
    assert took[1] < 60, "80 strangers, one after the other, would have had 2 seconds each"
