"""``--on k8s`` with a fake API server: an Indexed Job whose pods, local processes, hold a notebook's ranks."""

from __future__ import annotations

from pathlib import Path

import pytest
from hvdtest.cluster import execute
from hvdtest.fake_kubernetes import Cluster, cluster

from hvd_kernel.cluster import Session
from hvd_kernel.errors import ClusterError, UsageError
from hvd_kernel.launch.launchers.cluster_engine import NotebookEngine
from hvd_kernel.launch.launchers.kubernetes_job import Api, PodJob, examine
from hvd_kernel.processes.cluster_spec import ClusterSpec

pytestmark = [pytest.mark.mp, pytest.mark.nightly]


def started(made: Cluster, **how: float) -> Session:
    engine = PodJob(2, "me/train:1", 0.5, 0, Api(made.server, made.account))
    return Session.start(ClusterSpec(2, on="k8s", **how), engine=NotebookEngine(engine, {}))


def test_pods_hold_ranks_until_the_cluster_is_stopped(tmp_path: Path) -> None:
    with cluster(tmp_path) as made:
        session = started(made)
        try:
            place = "import os\nx = rank\n(hvd.rank(), size, local_rank, os.environ['JOB_COMPLETION_INDEX'])"
            assert execute(session, place).run.values() == {0: (0, 2, 0, "0"), 1: (1, 2, 0, "1")}
            assert execute(session, "os._exit(3) if rank == 1 else hvd.barrier()").failures[1].ename == "RankDied"
            assert session.respawn().ranks == (1,)
            left = "hvd.allgather_object(globals().get('x'))"
            assert execute(session, left).run.values() == {0: [0, None], 1: [0, None]}
            [job] = made.jobs.values()
            [secret] = made.secrets.values()
            assert secret["metadata"]["ownerReferences"][0]["uid"] == job["metadata"]["uid"], "it goes with the job"
        finally:
            session.stop()
        assert [pod.wait(30) for pod in made.pods.values()] == [0, 0]
        assert made.deleted == [job["metadata"]["name"]]


def test_unschedulable_pods_are_reported_and_removed(tmp_path: Path) -> None:
    said = r"1 of 2 pods run; 0/1 nodes are available: 1 Insufficient cpu\."
    with cluster(tmp_path, room=1) as made:
        with pytest.raises(ClusterError, match=said):
            started(made, start_timeout_s=6.0)
        assert len(made.deleted) == 1
        assert not made.jobs


def test_refusal_shows_the_message_of_the_server(tmp_path: Path) -> None:
    with cluster(tmp_path, may_create=False) as made, pytest.raises(ClusterError, match=r"cannot create resource"):
        started(made)


def test_missing_requirements_are_reported_before_the_start(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"^this notebook is not in a pod with a service account"):
        Api(account=tmp_path)
    with cluster(tmp_path) as made, pytest.raises(UsageError, match=r"set HVD_ON_IMAGE to an image"):
        PodJob(2, "", 1, 0, Api(made.server, made.account))


def test_doctor_names_rights_and_the_image(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HVD_ON_IMAGE", "me/train:1")
    with cluster(tmp_path) as made:
        account, image = examine(Api(made.server, made.account))
    assert (account.good, account.state) == (True, "namespace lab; this pod's account may all")
    assert (image.good, image.state) == (True, "me/train:1")
    monkeypatch.delenv("HVD_ON_IMAGE")
    (tmp_path / "other").mkdir()
    with cluster(tmp_path / "other", may_create=False) as made:
        account, image = examine(Api(made.server, made.account))
    assert account.state == "namespace lab; this pod's account may not create jobs, create secrets"
    assert not account.good
    assert not image.good
