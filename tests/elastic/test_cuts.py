"""Network cut between the hosts of an elastic job (row 28): two network namespaces, OpenSSH, and the wire between them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from hvdtest import sshd
from hvdtest.cluster import until
from hvdtest.elastic_job import ElasticJob
from hvdtest.hosts import Hosts, address, why_not
from hvdtest.wire import Wire

pytestmark = [
    pytest.mark.mp,
    pytest.mark.nightly,
    pytest.mark.usefixtures("mark"),
    pytest.mark.skipif(bool(why_not() or sshd.why_not()), reason=why_not() or sshd.why_not() or "none"),
]

HERE, THERE = address(0), address(1)
SILENT = {"HVD_NET_TIMEOUT": "6"}
TIMEOUT_S = 5
ALIVE = "-o ServerAliveInterval=3"  # instead of 10 s; of an option that is given twice the first counts


@pytest.fixture(scope="module")
def hosts() -> Iterator[Hosts]:
    with Hosts(2) as both:
        yield both


def cut(hosts: Hosts, folder: Path, where: str) -> tuple[int, str, list[dict[str, object]], dict[int, str]]:
    """Train beyond the link, with hvdrun on this side, and cut the network after an epoch; return the result, and each worker's."""
    job = ElasticJob(folder, starts=[0])
    slots = [int(host[-1]) for host in where.split(",")]
    np = sum(slots)
    flags = ["-np", str(np), "--min-np", "1", "-H", where, "--elastic-timeout", str(TIMEOUT_S)]
    flags += ["-p", str(sshd.PORT), "-i", str(folder / "person")]
    there = range(slots[0], np) if where.startswith(HERE) else range(slots[0])
    errors = {number: Path(f"{job.log}.error.{number}") for number in there}
    with sshd.serving(hosts, 1, folder) as path, Wire(hosts) as wire:
        client = folder / "ssh"
        client.write_text(client.read_text().replace('"$@"', f'{ALIVE} "$@"'))
        with hosts.inside(0):
            process = job.start(*flags, **path, **SILENT)
        try:
            until(lambda: process.poll() is not None or job.log.read_text() != "", "an epoch is over")
            wire.silent = frozenset({0, 1})
            Path(f"{job.log}.late").touch()
            out, err = process.communicate(timeout=150)
            until(lambda: all(each.exists() for each in errors.values()), "those behind the cut end", 180)
        finally:
            process.kill()
            process.wait()
        wire.silent = frozenset()
    ended = job.ended(process.returncode, out, err)
    return ended.status, err, ended.lines, {number: each.read_text() for number, each in errors.items()}


@pytest.mark.parametrize(
    ("where", "sizes"), [(f"{HERE}:2,{THERE}:2", [4, 2, 2]), (f"{HERE}:3,{THERE}:2", [5, 3, 3])], ids=["2+2", "3+2"]
)
def test_28_majority_continues_or_the_half_of_rank_0(
    hosts: Hosts, tmp_path: Path, where: str, sizes: list[int]
) -> None:
    status, err, lines, errors = cut(hosts, tmp_path, where)
    assert (status, [line["size"] for line in lines]) == (0, sizes), err
    assert {line["host"] for line in lines} == {HERE}, "nobody trains behind the cut"
    assert f"{THERE} is lost: " in err
    assert len(errors) == 2
    for said in errors.values():
        assert said.startswith("HvdTimeout: the driver of this elastic job has given this rank no place"), said


@pytest.mark.parametrize("where", [f"{THERE}:2,{HERE}:2", f"{HERE}:2,{THERE}:3"], ids=["2+2", "2+3"])
def test_28_job_ends_if_hvdrun_is_with_the_minority(hosts: Hosts, tmp_path: Path, where: str) -> None:
    status, err, lines, errors = cut(hosts, tmp_path, where)
    assert (status != 0, len(lines)) == (True, 1), err
    assert f"the network is cut: {len(errors)} ranks are behind it and 2 here, the minority" in err
    for said in errors.values():
        assert said.startswith("HvdTimeout: the driver of this elastic job has given this rank no place"), said
