"""Lists that users type: empty entries and blanks are left out everywhere, as Open MPI does; a list of nothing is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from hvd_kernel.bench.__main__ import _sizes
from hvd_kernel.compat.tree.launchers import interface
from hvd_kernel.errors import ConfigError, UsageError
from hvd_kernel.launch.cli.flags import parse
from hvd_kernel.launch.placement import Host, job_hosts
from hvd_kernel.magics.options import _names, resolve
from hvd_kernel.settings import gpus, horovod, setting
from hvd_kernel.settings.lists import entries


@pytest.mark.parametrize(
    ("read", "text", "value"),
    [
        (entries, "a, b,,", ["a", "b"]),
        (lambda text: job_hosts(text, None, 1), "localhost:2,", [Host("localhost", 2)]),
        (lambda text: job_hosts(text, None, 1), ",a:2,, b ,", [Host("a", 2), Host("b", 1)]),
        (lambda text: parse(["-H", text, "true"]).np, "localhost:2,", 2),
        (lambda text: parse(["-np", "1", "--network-interfaces", text, "true"]).interfaces, "lo,,", ("lo",)),
        (gpus.checked, "0, 1,", "0,1"),
        (gpus.checked, "auto,", "auto"),
        (setting.cores, "2,2,", "2,2"),
        (lambda text: horovod.interface(text).value, "lo,", "lo"),
        (interface, "lo, eth0,", "eth0"),
        (lambda text: resolve(text, 4), "0,2-3,", (0, 2, 3)),
        (_names, "a, b,", ("a", "b")),
        (_sizes, "4K,64K,", [4096, 65536]),
    ],
)
def test_empty_entries_are_left_out(read: Callable[[str], Any], text: str, value: Any) -> None:
    assert read(text) == value


@pytest.mark.parametrize(
    ("read", "error"),
    [
        (lambda text: job_hosts(text, None, 1), "-H , names no host: write host:slots,other:slots."),
        (gpus.checked, "--gpus ,: ',' is not a device number: write 0,1 or auto or all or none."),
    ],
)
def test_a_list_without_entries_is_refused(read: Callable[[str], Any], error: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read(",")
    assert str(caught.value) == error


def test_ranks_without_entries_are_refused() -> None:
    with pytest.raises(UsageError, match="--ranks ,: names no rank"):
        resolve(",", 4)
