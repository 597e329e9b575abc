"""Public docstrings tell what a name takes, returns and raises, and have an example."""

from __future__ import annotations

import importlib

import pytest
from hvdtest.docstrings import MODULES, constants, examples, lacking, public


def good(size: int, *more: int, op: str = "Sum") -> int:
    """Return the size.

    Parameters
    ----------
    size
        A number.
    *more, op
        Others.

    Raises
    ------
    ValueError
        Never.

    Examples
    --------
    >>> good(1)
    1

    On two ranks:

    >>> good(2)
    2
    """
    del more, op
    return size


def refers(size: int, op: str = "Sum") -> int:
    """Return it twice. Parameters and errors as in ``good``.

    >>> refers(1)
    2
    """
    return size + len(op)


def half(size: int, op: str = "Sum") -> int:
    """Do it. Parameters as in ``bare``.

    Parameters
    ----------
    more : int
        It has none.
    """
    return size + len(op)


def bare(size: int) -> None:
    """Do nothing.

    Parameters
    ----------
    size
        A number.
    """
    del size


class Failed(Exception):
    """What an error says.

    >>> Failed()
    Failed()
    """

    def __init__(self) -> None:
        super().__init__()


OTHERS = {"good": good, "bare": bare}
# What is still to be told; it only shrinks.
NOT_YET = """
    Compression DistributedOptimizer HorovodInternalError ProcessSet SyncBatchNorm add_process_set allgather_object barrier
    broadcast_object broadcast_optimizer_state broadcast_parameters convert_sync_batchnorm init join log log_artifact
    log_model outputs_path poll release_shared remove_process_set shared_empty synchronize
    elastic.ElasticSampler elastic.HostUpdateResult elastic.HostsUpdatedInterrupt elastic.ObjectState elastic.State
    elastic.TorchState elastic.run elastic.run_fn elastic.WorkerNotificationManager elastic.notification_manager
    numpy.allgather numpy.allreduce numpy.alltoall numpy.broadcast numpy.grouped_allgather numpy.grouped_allreduce
    numpy.grouped_reducescatter numpy.reducescatter numpy.shared_empty numpy.Adasum numpy.Average numpy.Max numpy.Min
    numpy.Product numpy.Sum numpy.__version__ numpy.elastic numpy.global_process_set
    hvd_kernel.client hvd_kernel.keep hvd_kernel.load_ipython_extension hvd_kernel.run hvd_kernel.unload_ipython_extension
    hvd_kernel.__version__
"""


def test_a_docstring_that_tells_all_lacks_nothing() -> None:
    assert [lacking(each, OTHERS) for each in (good, refers, Failed)] == [[], [], []]


def test_what_is_lacking_is_named() -> None:
    assert lacking(half, OTHERS) == [
        "op is not told",
        "more is told and is no parameter",
        "what it raises is not told",
        "what it returns is not told",
        "there is no example",
    ]
    assert lacking(bare, OTHERS) == ["what it raises is not told", "there is no example"]


def test_examples_of_two_ranks_are_for_two_ranks() -> None:
    found = {
        size: [one.source for each in examples("good", good.__doc__ or "", size) for one in each.examples]
        for size in (1, 2, 3)
    }
    assert found == {1: ["good(1)\n"], 2: ["good(1)\n", "good(2)\n"], 3: ["good(1)\n"]}


def late(module: str) -> set[str]:
    room = module.rpartition(".")[2]
    names = {each.rpartition(".")[::2] for each in NOT_YET.split()}
    return {name for where, name in names if where == ("" if room == "torch" else room)}


@pytest.mark.parametrize("module", MODULES)
def test_every_public_name_is_told(module: str) -> None:
    loaded = importlib.import_module(module)
    there = {name: getattr(loaded, name) for name in loaded.__all__}
    wrong = {name: lack for name, each in public(module).items() if (lack := lacking(each, there))}
    assert set(wrong) == late(module) & set(public(module)), wrong


@pytest.mark.parametrize("module", MODULES)
def test_a_module_tells_its_constants(module: str) -> None:
    doc = importlib.import_module(module).__doc__ or ""
    untold = {name for name in constants(module) if f"``{name}``" not in doc}
    assert untold == late(module) & set(constants(module))
