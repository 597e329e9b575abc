"""-H and --hostfile of the magics: the number of ranks they give, and what they replace in the running cluster."""

from __future__ import annotations

from pathlib import Path

import pytest

from hvd_kernel.errors import UsageError
from hvd_kernel.magics.cluster_request import requested_cluster, slots_of_file
from hvd_kernel.magics.options import Options
from hvd_kernel.processes.cluster_spec import ClusterSpec


def file_of(tmp_path: Path, text: str) -> str:
    (tmp_path / "hosts").write_text(text)
    return str(tmp_path / "hosts")


@pytest.mark.parametrize(
    ("text", "slots"),
    [
        ("a slots=4\nb slots=2\n", 6),
        ("a:4\nb\n", 5),
        ("# the two of us\na slots = 3 max_slots=8  # big\n\nb max_slots=8 slots=2\n", 5),
        ("10.0.0.1 slots=2", 2),
    ],
)
def test_a_hostfile_without_np_offers_its_slots(tmp_path: Path, text: str, slots: int) -> None:
    file = file_of(tmp_path, text)
    assert slots_of_file(file) == slots
    assert requested_cluster(Options(hostfile=file), ClusterSpec(2)) == ClusterSpec(n=slots, hostfile=file)
    assert requested_cluster(Options(hostfile=file, n=1), ClusterSpec(2)) == ClusterSpec(n=1, hostfile=file)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a slots=x", "hosts:1:9: 'x' is not a number of slots from 1 to 999999: write host slots=4"),
        ("a\nb:x", "hosts:2:3: 'x' is not a number of slots"),
        ("# nobody\n", "the hostfile names no host: write lines like `host slots=4`"),
    ],
)
def test_unparsable_hostfile_names_the_line(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        slots_of_file(file_of(tmp_path, text))


def test_missing_hostfile_is_named() -> None:
    with pytest.raises(UsageError, match="--hostfile /nowhere/hosts: it cannot be read"):
        slots_of_file("/nowhere/hosts")


def test_both_are_refused_by_their_flags() -> None:
    with pytest.raises(UsageError, match="-H and --hostfile both say where the ranks run: keep one of them"):
        requested_cluster(Options(hosts="a:1", hostfile="f"), ClusterSpec(2))


def test_one_replaces_the_other_of_the_running_cluster(tmp_path: Path) -> None:
    file = file_of(tmp_path, "c slots=3")
    assert requested_cluster(Options(hostfile=file), ClusterSpec(n=2, hosts="a:2")) == ClusterSpec(n=3, hostfile=file)
    assert requested_cluster(Options(hosts="a:2"), ClusterSpec(n=3, hostfile=file)) == ClusterSpec(n=2, hosts="a:2")
    assert requested_cluster(Options(), ClusterSpec(n=3, hostfile=file)) == ClusterSpec(n=3, hostfile=file)
