"""The engine of docs/extending.md, whose processes hold real ranks."""

from __future__ import annotations

import sys
from io import StringIO

import cloudpickle
import pytest
from hvdtest.recipes import module

from hvd_kernel.launch.job_run import Job
from hvd_kernel.launch.run.call import pack_call
from hvd_kernel.launch.run.execution import in_processes

pytestmark = pytest.mark.mp
cloudpickle.register_pickle_by_value(sys.modules[__name__])  # ranks do not see this file


def gathered() -> list[int]:
    from hvd_kernel.core import session
    from hvd_kernel.torch import allgather_object

    session.init()
    return allgather_object(session.rank())


def test_ranks_of_the_new_engine_form_a_communicator() -> None:
    job = Job(command=[""], np=2, engine=module("engine").Multiprocessing(2), start_timeout_s=60)
    assert in_processes(pack_call(gathered, (), {}, ()), job, stdout=StringIO(), stderr=StringIO()) == [[0, 1]] * 2
