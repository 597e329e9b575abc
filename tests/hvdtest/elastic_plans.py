"""Real ranks in planned generations: only the driver that assigns ranks is fake.

Terms.
  plan  the generations of a job: of each the ranks of its workers
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from hvdtest.exact import raises
from hvdtest.fake_driver import FakeDriver
from hvdtest.launch import RankPool

Plan = Sequence[Mapping[int, int]]


def workers(driver: FakeDriver, count: int, transport: str = "shm", **env: str) -> RankPool:
    """Processes that wait, as soon as they call init, until the driver has a place for them."""
    return RankPool(count, transport, lambda worker, *_: driver.variables(worker) | {"WORKER": str(worker)}, **env)


def serve(driver: FakeDriver, pool: RankPool, plan: Plan, check: Any, *args: Any, **gone: Any) -> tuple[Any, list[Any]]:
    with ThreadPoolExecutor(1) as executor:
        said = executor.submit(driver.serve, plan)
        found = pool.run(check, *args, **gone)
        return said.result(), found


def generations(plan: list[dict[str, int]]) -> Iterator[tuple[int, dict[int, int]]]:
    """Join each generation of the plan until this worker is removed."""
    import hvd_kernel.torch as hvd
    from hvd_kernel.core import process_sets

    me, has_met = int(os.environ["WORKER"]), False
    for number, words in enumerate(plan, 1):
        ranks = {int(worker): rank for worker, rank in words.items()}
        if me in ranks:
            process_sets.reset_communicator() if has_met else hvd.init(process_sets="dynamic")
            has_met = True
            yield number, ranks
        elif has_met:
            error = raises(SystemExit, "0", process_sets.reset_communicator)
            assert isinstance(error, SystemExit)
            assert error.code == 0
            assert not hvd.is_initialized()
            return
