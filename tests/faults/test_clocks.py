"""A wall clock that jumps an hour to and fro has no effect on ranks: all that waits reads the monotonic one (F7)."""

from __future__ import annotations

import shutil
import subprocess
import time

import pytest
from hvdtest.launch import RankPool

pytestmark = [pytest.mark.mp, pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")]

# Every look at the wall clock finds it an hour further on, or back, or a second off.
JUMPING = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdatomic.h>
#include <stddef.h>
#include <sys/time.h>
#include <time.h>

static int jumped(clockid_t clock, struct timespec *at) {
  static int (*real)(clockid_t, struct timespec *);
  static atomic_uint looks;
  static const long jumps[] = {0, 3600, -3600, 1, -1};
  if (real == NULL) real = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
  const int result = real(clock, at);
  if (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE) at->tv_sec += jumps[atomic_fetch_add(&looks, 1) % 5];
  return result;
}
int clock_gettime(clockid_t clock, struct timespec *at) { return jumped(clock, at); }
int gettimeofday(struct timeval *restrict at, void *restrict zone) {
  struct timespec exact;
  (void)zone;
  const int result = jumped(CLOCK_REALTIME, &exact);
  at->tv_sec = exact.tv_sec;
  at->tv_usec = exact.tv_nsec / 1000;
  return result;
}
time_t time(time_t *at) {
  struct timespec exact;
  jumped(CLOCK_REALTIME, &exact);
  if (at != NULL) *at = exact.tv_sec;
  return exact.tv_sec;
}
"""


@pytest.fixture(scope="module")
def jumping(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The clock, to be loaded before everything else."""
    folder = tmp_path_factory.mktemp("clock")
    (folder / "clock.c").write_text(JUMPING)
    library = folder / "clock.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", library, folder / "clock.c", "-ldl"], check=True)
    return str(library)


def sums_under_it(transport: str) -> None:
    import os

    import torch

    import hvd_kernel.torch as hvd

    looks = [time.time() for _ in range(10)]
    assert max(looks) - min(looks) > 3000, "the clock does not jump"
    os.environ["HVD_TRANSPORT"] = transport
    for start in range(3):
        hvd.init()
        n = hvd.size()
        for number in range(200):
            values = hvd.allreduce(torch.full((1000,), hvd.rank() + 1.0), name=f"x{number % 7}", op=hvd.Sum)
            assert torch.equal(values, torch.full((1000,), n * (n + 1) / 2)), start
        hvd.barrier()
        hvd.shutdown()


def test_f7_ranks_sum_while_the_wall_clock_jumps(jumping: str) -> None:
    with RankPool(3, LD_PRELOAD=jumping) as pool:
        for transport in ("shm", "tcp"):
            pool.run(sums_under_it, transport)
