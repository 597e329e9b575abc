"""Values per rank in the notebook, and the holder of the one cluster."""

from __future__ import annotations

import threading

import pytest

from hvd_kernel.errors import ClusterError, UsageError
from hvd_kernel.magics.holder import Holder
from hvd_kernel.magics.results import CellResult, PerRank


def test_per_rank_is_a_mapping_with_a_merged_repr() -> None:
    values = PerRank({2: "b", 0: "a", 1: "a"})
    assert (values[2], values.rank(0), list(values), len(values)) == ("b", "a", [0, 1, 2], 3)
    assert repr(values) == "[0-1] 'a'\n[2] 'b'"
    with pytest.raises(KeyError, match="no value of rank 3; there are values of"):
        values[3]


def test_cell_result_has_the_text() -> None:
    result = CellResult({0: 1}, {0: "out"}, {0: ""})
    assert (result[0], result.stdout[0], result.stderr[0]) == (1, "out", "")


def test_without_a_cluster() -> None:
    holder = Holder()
    holder.stop()
    assert holder.spec is None
    with pytest.raises(ClusterError, match="%hvd start -np 4 starts them"):
        holder.current()


def test_a_second_cell_is_told_to_wait() -> None:
    holder, caught = Holder(), []

    def second() -> None:
        try:
            with holder.use():
                pass
        except UsageError as error:
            caught.append(str(error))

    with holder.use():
        thread = threading.Thread(target=second)
        thread.start()
        thread.join(60)
    assert caught == ["the ranks are busy with another cell: wait for it or interrupt it"]
    with holder.use():
        pass
