"""Values per rank in the notebook, and the manager of the one cluster."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from hvd_kernel.errors import ClusterError, UsageError
from hvd_kernel.magics.cluster_manager import ClusterManager
from hvd_kernel.magics.cluster_request import requested_cluster
from hvd_kernel.magics.display.results import CellResult, PerRank
from hvd_kernel.magics.messages import BUSY
from hvd_kernel.magics.options import Options, says_one_rank
from hvd_kernel.processes.cluster_spec import ClusterSpec


def test_per_rank_is_the_values_in_rank_order_with_a_merged_repr() -> None:
    values = PerRank({2: "b", 0: "a", 1: "a"})
    assert (values[2], values.rank(0), list(values), len(values)) == ("b", "a", ["a", "a", "b"], 3)
    assert (dict(values), list(values.keys()), list(values.values())) == (
        {0: "a", 1: "a", 2: "b"},
        [0, 1, 2],
        ["a", "a", "b"],
    )
    assert list(values.items()) == [(0, "a"), (1, "a"), (2, "b")]
    assert repr(values) == "[0-1] 'a'\n[2] 'b'"
    with pytest.raises(KeyError, match="no value of rank 3; there are values of"):
        values[3]


def test_per_rank_as_an_array_is_the_values_not_the_ranks() -> None:
    """A list of losses was drawn as [0]: the numbers of the ranks."""
    losses = PerRank({0: [3.0, 2.0], 1: [5.0, 4.0]})
    assert np.asarray(losses).tolist() == [[3.0, 2.0], [5.0, 4.0]]
    assert np.asarray(losses, dtype=np.int64).tolist() == [[3, 2], [5, 4]]
    assert sum(PerRank({0: 1.5, 3: 2.0})) == 3.5
    with pytest.raises(ValueError, match=r"different shapes \(rank 0: \(2,\), rank 1: \(1,\)\): take one rank's"):
        np.asarray(PerRank({0: [1, 2], 1: [1]}))
    with pytest.raises(ValueError, match="is always a copy"):
        np.array(losses, copy=False)


def test_one_rank_is_shown_by_its_number() -> None:
    assert [says_one_rank(text) for text in ("2", "root", "all", "1:", "0,2", "2-2")] == [True, True, *[False] * 4]


def test_cell_result_has_the_text() -> None:
    result = CellResult({0: 1}, {0: "out"}, {0: ""})
    assert (result[0], result.stdout[0], result.stderr[0]) == (1, "out", "")


def test_without_a_cluster() -> None:
    manager = ClusterManager()
    manager.stop()
    assert manager.spec is None
    with pytest.raises(ClusterError, match="%hvd start -np 4 starts them"):
        manager.current()


def test_number_of_ranks_of_an_interrupted_start_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """A bare %%hvdrun after an interrupted %%hvdrun -np 4 started two ranks."""

    def pressed(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("hvd_kernel.cluster.Session.start", pressed)
    manager = ClusterManager()
    with pytest.raises(KeyboardInterrupt):
        manager.start(ClusterSpec(4), print)
    assert manager.spec == ClusterSpec(4)
    assert requested_cluster(Options(), manager.spec) == ClusterSpec(4)


def test_second_cell_is_refused_while_one_runs() -> None:
    manager, caught = ClusterManager(), []

    def second() -> None:
        try:
            with manager.use():
                pass
        except UsageError as error:
            caught.append(str(error))

    with manager.use():
        thread = threading.Thread(target=second)
        thread.start()
        thread.join(60)
    assert caught == [BUSY]
    with manager.use():
        pass
