"""How a rank imports: the garbage collector rests meanwhile, and works again afterwards, whatever the import does."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from hvd_kernel.worker.standby import without_collection


@pytest.fixture(autouse=True)
def thawed() -> Iterator[None]:
    yield
    gc.unfreeze()


def test_garbage_collection_is_off_while_a_rank_imports() -> None:
    with without_collection():
        assert not gc.isenabled()
        imported = [object()]
    assert gc.isenabled()
    assert not any(each is imported for each in gc.get_objects())


def test_an_import_that_fails_leaves_the_collector_at_work() -> None:
    with pytest.raises(ImportError), without_collection():
        raise ImportError
    assert gc.isenabled()
