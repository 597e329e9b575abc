"""MPS for hosts where each rank has its own agent: the first agent starts one daemon for all. The daemon is a fake."""

from __future__ import annotations

import os
import shutil
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hvdtest import fake_mps
from hvdtest.cluster import until

from hvd_kernel.processes.mps import daemon, decision
from hvd_kernel.processes.mps.daemon import HostDaemon, PrivateDaemon, members

RUN = "5f" * 16
A, B = {"machine": "a", "devices": ["0"]}, {"machine": "b", "devices": ["0"]}


@pytest.mark.parametrize(
    ("cards", "want"),
    [
        ([A], [1]),
        ([A, A, A], [3, 3, 3]),
        ([A, B, A], [2, 1, 2]),
        ([A, A | {"devices": ["1"]}], [1, 1]),
        ([A, A | {"devices": ["1"]}, A | {"devices": ["0", "1"]}], [2, 2, 3]),
        ([A | {"devices": None}, A], [2, 2]),
        ([A | {"devices": None}, B | {"devices": None}], [1, 1]),
        ([A | {"devices": []}, A], [0, 1]),
    ],
)
def test_number_of_ranks_sharing_devices(cards: list[dict[str, object]], want: list[int]) -> None:
    assert [decision.sharing(each, cards) for each in cards] == want


class Agents:
    """Agents of one run on this host, as far as MPS goes."""

    def __init__(self, number: int, env: dict[str, str]) -> None:
        self.said: list[str] = []
        self._env = env
        self._own = [PrivateDaemon(self.said.append) for _ in range(number)]
        self._every = [HostDaemon(own, self.said.append) for own in self._own]

    def variables(self, agent: int, ranks: int = 3, **more: str) -> dict[str, str]:
        return self._every[agent].variables(RUN, ranks, self._env | more)

    def close(self, agent: int) -> None:
        self._every[agent].close()
        self._own[agent].close()

    def close_all(self) -> None:
        for agent in range(len(self._every)):
            self.close(agent)


@pytest.fixture
def agents(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Agents]:
    """Three of them, on one device."""
    monkeypatch.setattr(decision, "_DEFAULT", tmp_path / "nvidia-mps")
    monkeypatch.setenv("PATH", fake_mps.installed(tmp_path / "bin"))
    place = daemon._place(RUN)
    assert not place.exists()
    made = Agents(3, dict(os.environ) | {"CUDA_VISIBLE_DEVICES": "5"})
    yield made
    made.close_all()
    assert not place.exists()


def test_first_agent_starts_the_daemon_for_all(agents: Agents) -> None:
    with ThreadPoolExecutor(3) as pool:
        found = list(pool.map(agents.variables, range(3)))
    pipes = Path(found[0][decision.PIPES])
    assert found == [found[0]] * 3
    assert len(members(pipes)) == 1
    agents.close_all()
    assert (members(pipes), pipes.exists(), agents.said) == ([], False, [])


def test_rank_with_its_own_device_has_no_daemon(agents: Agents) -> None:
    """As actors of Ray: two with a half of a GPU each, one with a whole one."""
    assert agents.variables(0, ranks=1, CUDA_VISIBLE_DEVICES="6") == {}
    found = agents.variables(1, ranks=2)
    assert decision.answers(Path(found[decision.PIPES]))
    assert agents.variables(2, ranks=2) == found


def test_daemon_outlives_agents_that_did_not_start_it(agents: Agents) -> None:
    pipes = Path(agents.variables(0)[decision.PIPES])
    assert agents.variables(1)[decision.PIPES] == str(pipes)
    agents.close(1)
    assert len(members(pipes)) == 1
    assert agents.variables(2)[decision.PIPES] == str(pipes)
    agents.close(0)
    assert members(pipes) == [], "it ends with whoever has started it"
    assert agents.variables(2)[decision.PIPES] != str(pipes), "who comes then starts another"


def test_dead_daemon_is_restarted_for_the_next_agent(agents: Agents) -> None:
    pipes = Path(agents.variables(0)[decision.PIPES])
    [daemon] = members(pipes)
    os.kill(daemon, signal.SIGKILL)
    until(lambda: not decision.answers(pipes), "it has died")
    after = Path(agents.variables(1)[decision.PIPES])
    assert decision.answers(after)
    assert agents.variables(2)[decision.PIPES] == str(after)


def test_failed_start_is_reported_by_the_first_agent_alone(agents: Agents) -> None:
    assert [agents.variables(each, FAKE_MPS="refuses") for each in range(3)] == [{}, {}, {}]
    why = f"nvidia-cuda-mps-control did not start: [fake] {fake_mps.REFUSAL}"
    assert agents.said == [f"no MPS, so ranks take turns on the device: {why}"]


def test_note_removed_while_awaited_is_written_again(agents: Agents) -> None:
    found: list[dict[str, str]] = []
    waiting = threading.Thread(target=lambda: found.append(agents.variables(1)))
    with daemon._locked_note(RUN):
        note = daemon._place(RUN) / daemon._NOTE
        waiting.start()
        until(lambda: f"{note.stat().st_ino} " in _waited_for(), "it waits for the lock")
        shutil.rmtree(note.parent)
    waiting.join(30)
    assert decision.answers(Path(found[0][decision.PIPES]))
    assert agents.variables(2) == found[0]


def _waited_for() -> str:
    """Return the files whose locks are waited for, by their numbers."""
    lines = [line.split() for line in Path("/proc/locks").read_text().splitlines() if "->" in line]
    return "".join(f"{line[6].rpartition(':')[2]} " for line in lines)


def test_folder_of_another_user_is_not_used(agents: Agents, tmp_path: Path) -> None:
    place = daemon._place(RUN)
    place.symlink_to(tmp_path)
    assert agents.variables(0) == {}
    assert agents.said == [f"no MPS, so ranks take turns on the device: {place} is not this user's own folder"]
    place.unlink()
