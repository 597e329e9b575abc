"""Collectives outside of programs on arrays of a GPU (HVD_JAX=stream): read and written where they are, on a fake GPU.

JAX for the CPU has no such arrays: a library of arrays that knows DLPack stands for jax.numpy, and the driver is the fake.
"""

from __future__ import annotations

from typing import Any

import pytest
from hvdtest import fake_cuda_driver
from hvdtest.environments import Ranks, environment

pytestmark = [
    pytest.mark.nightly,
    pytest.mark.mp,
    pytest.mark.skipif(bool(fake_cuda_driver.why_not()), reason=fake_cuda_driver.why_not()),
]


def collectives() -> dict[str, Any]:
    """Return each kind's result, the operand afterwards, and the stream for which the library was called."""
    import numpy as np
    from hvdtest import fake_array as xp

    import hvd_kernel.jax as hvd
    from hvd_kernel.jax import operation as kinds
    from hvd_kernel.jax.eager import DeviceMemory, run_in
    from hvd_kernel.jax.operation import OperationParams

    xp.install()
    hvd.init()
    rank, where = hvd.rank(), DeviceMemory()

    def done(kind: int, *values: Any, **how: Any) -> list[Any]:
        arrays = [xp.array(np.array(value, np.float32)) for value in values]
        results = run_in(OperationParams(kind, f"of_{kind}_{how}", **how), arrays, where)
        assert {type(each) for each in results} == {xp.Array}
        assert not {each.address for each in results} & {each.address for each in arrays}
        assert [each.on_host().tolist() for each in arrays] == [np.array(value, float).tolist() for value in values]
        return [each.on_host().tolist() for each in results]

    return {
        "sum": done(kinds.ALLREDUCE, [1.0 + rank, 2.0], [[10.0 * rank]], op=hvd.Sum, grouped=True),
        "scaled": done(kinds.ALLREDUCE, [4.0], op=hvd.Average, prescale=0.5),
        "for one": done(kinds.ALLREDUCE, [3.0], op=hvd.Sum, only=1),
        "broadcast": done(kinds.BROADCAST, [rank, rank], root=1),
        "scattered": done(kinds.REDUCESCATTER, [[1.0], [2.0], [3.0]], op=hvd.Sum),
        "gathered": done(kinds.ALLGATHER, [[rank]] * (rank + 1)),
        "exchanged": done(kinds.ALLTOALL, [10.0 * rank, 10.0 * rank + 1]),
        "asked": sorted(set(map(str, xp.asked))),
    }


def test_every_kind_of_array_stays_in_its_memory() -> None:
    driver = str(fake_cuda_driver.driver())
    with Ranks(environment("jaxnew"), 2, HVD_JAX="stream", HVD_CUDA_DRIVER=driver, CUDA_VISIBLE_DEVICES="0") as ranks:
        found = ranks.run(collectives)
    shared = {
        "sum": [[3.0, 4.0], [[10.0]]],
        "scaled": [[2.0]],
        "broadcast": [[1.0, 1.0]],
        "gathered": [[[0.0], [1.0], [1.0]]],
        "asked": ["1"],  # DLPack's number of the default stream
    }
    own = [
        {"for one": [[0.0]], "scattered": [[[2.0], [4.0]]], "exchanged": [[0.0, 10.0]]},
        {"for one": [[6.0]], "scattered": [[[6.0]]], "exchanged": [[1.0, 11.0]]},
    ]
    assert found == [shared | each for each in own]


def names() -> list[object]:
    """Tell whether JAX's own library behaves like the fake, on the CPU: own memory, adopted, in order."""
    import jax
    import jax.numpy as jnp

    x = jnp.arange(6.0).reshape(2, 3)
    made = jnp.empty_like(x, shape=(1, 3), device=x.device)

    class Memory:
        def __dlpack_device__(self) -> tuple[int, int]:
            return 1, 0

        def __dlpack__(self, **_: object) -> object:
            return made.__dlpack__()

    kept, result = made.__dlpack__(), jnp.from_dlpack(Memory())
    is_own = made.unsafe_buffer_pointer() != x.unsafe_buffer_pointer() and made.shape == (1, 3)
    is_taken = result.unsafe_buffer_pointer() == made.unsafe_buffer_pointer()
    del kept
    try:
        x.__dlpack__(stream=1)
    except jax.errors.JaxRuntimeError as error:
        return [is_own, is_taken, str(error)]
    return [is_own, is_taken, ""]


def test_jax_has_the_names_of_the_fake(version: str) -> None:
    ordered = "UNIMPLEMENTED: WaitUntilBufferReadyOnStream is only implemented for GPU."
    with Ranks(environment(version), 1) as ranks:
        assert ranks.run(names) == [[True, True, ordered]]


def taken() -> list[bool]:
    """Whether arrays on the host, and none at all, are for the device."""
    import jax.numpy as jnp
    import numpy as np

    from hvd_kernel.jax import eager

    return [eager.are_supported(values) for values in ([jnp.ones(2)], [np.ones(2)], [1.0])]


def test_arrays_on_the_host_stay_there() -> None:
    with Ranks(environment("jaxnew"), 2, HVD_JAX="stream") as ranks:
        assert ranks.run(taken) == [[False] * 3] * 2
