"""Helpers for ranks with a GPU: the device of the rank, copies of tensors, and the paths they can take.

Terms.
  way   how the ranks' tensors are reduced: ring (the core's own), nccl, core (staged by the core), torch (staged by torch);
        auto: as without any setting
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from hvdtest.launch import RankPool
from hvdtest.pools import kept

if TYPE_CHECKING:
    import torch

WAYS = {
    "ring": {"HVD_GPU_OPERATIONS": "ring"},
    "nccl": {"HVD_GPU_OPERATIONS": "nccl"},
    "core": {"HVD_GPU_OPERATIONS": "staged"},
    "torch": {"HVD_GPU": "staged"},
}
# Smaller tensors stay in a device's L2 cache, where what its memory can copy is no limit.
BEYOND_L2 = 64 << 20


def gpu_ranks(np: int, way: str, **env: str) -> RankPool:
    """Return initialized ranks with that transport; one pool is open at a time."""

    def made() -> RankPool:
        variables: dict[str, Any] = WAYS.get(way, {}) | env
        return RankPool(np, "auto", HVD_DYNAMIC_PROCESS_SETS="1", **variables)

    def begin(pool: RankPool) -> None:
        pool.run(start, way, timeout=120.0)

    return kept((np, way, *env.items()), made, begin)


# On a rank.


def start(way: str) -> None:
    """Initialize; the core reads tensors on the GPU unless torch stages them."""
    from hvdtest import fake_gpu

    import hvd_kernel.torch as hvd
    from hvd_kernel.core.tensor import device_trouble

    if fake_gpu.wanted():
        fake_gpu.install()
    hvd.init()
    assert device_trouble(device().index) == ("HVD_GPU=staged" if way == "torch" else "")


def device() -> torch.device:
    """Return the GPU of this rank; ranks share GPUs if there are fewer."""
    import torch

    import hvd_kernel.torch as hvd

    return torch.device("cuda", hvd.local_rank() % torch.cuda.device_count())


def there(tensor: torch.Tensor) -> torch.Tensor:
    """A copy on the rank's GPU."""
    from hvdtest import fake_gpu

    return fake_gpu.there(tensor) if fake_gpu.wanted() else tensor.to(device(), copy=True)


def here(result: Any) -> Any:
    """Copy results to the host for comparison."""
    from hvdtest import fake_gpu

    if isinstance(result, (list, tuple)):
        return type(result)(map(here, result))
    return fake_gpu.here(result) if fake_gpu.wanted() else result.cpu()


def alike(got: Any, want: Any, what: str) -> None:
    """The same bytes, type and shape, whatever the elements are."""
    import torch

    for number, (one, other) in enumerate(zip(_flat(got), _flat(want), strict=True)):
        assert (one.dtype, one.shape) == (other.dtype, other.shape), f"{what}[{number}]"
        if not one.numel():
            continue
        mine, others = (t.detach().cpu().contiguous().reshape(-1).view(torch.uint8) for t in (one, other))
        assert torch.equal(mine, others), f"{what}[{number}]: {one.flatten()[:8]} instead of {other.flatten()[:8]}"


def _flat(result: Any) -> Iterable[Any]:
    return result if isinstance(result, (list, tuple)) else (result,)
