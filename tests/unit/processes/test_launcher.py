"""A start that is interrupted is undone, wherever the key was pressed."""

from __future__ import annotations

import tempfile
import uuid
from pathlib import Path

import pytest

from hvd_kernel.cluster import launcher
from hvd_kernel.processes import open_mpi
from hvd_kernel.processes.cluster_spec import ClusterSpec


@pytest.mark.parametrize("moment", ["shared_memory_folder", "claim", "mpi_arguments", "environment"])
def test_b2_an_interrupt_while_folders_are_made_leaves_none(
    moment: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def pressed(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(launcher, moment, pressed)
    name = uuid.uuid4().hex  # other processes of this machine come and go there
    monkeypatch.setattr(open_mpi.secrets, "token_hex", lambda _: name)
    with pytest.raises(KeyboardInterrupt):
        launcher.Launched(ClusterSpec(1))
    assert list(tmp_path.iterdir()) == []
    assert not Path("/dev/shm", f"hvd-{name}").exists()
