"""A rank that dies while others wait for it in MXNet's engine: they raise at their wait, by the class and the rank."""

from __future__ import annotations

import os
import signal
from typing import Any

import pytest
from hvdtest.environments import Ranks, environment

pytestmark = [pytest.mark.nightly, pytest.mark.mp]


def death() -> list[Any]:
    import mxnet as mx

    import hvd_kernel.mxnet as hvd
    from hvd_kernel import errors

    hvd.init()
    hvd.barrier()
    if hvd.rank() == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    results = [hvd.allreduce(mx.nd.ones((4,)) * number, name=str(number)) for number in range(3)]
    told = []
    for result in results:
        try:
            (result + 1).wait_to_read()
        except errors.RankDied as error:
            told.append([isinstance(error, mx.MXNetError), error.rank])
    return [told, mx.nd.ones((1,)).asnumpy().tolist()]


def test_survivors_raise_by_name_and_mxnet_works_on(as_launched: dict[str, str]) -> None:
    with Ranks(environment("mxnet"), 3, **as_launched) as ranks:
        dead = [[[True, 1]] * 3, [1.0]]
        assert ranks.run(death, gone={1: -signal.SIGKILL}) == [dead, None, dead]
