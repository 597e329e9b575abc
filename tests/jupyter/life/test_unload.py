"""%unload_ext hvd_kernel: magics, completion and ranks are gone, and loading again works."""

from __future__ import annotations

from pathlib import Path

import pytest
from hvdtest.cluster import until
from hvdtest.kernel import Kernel
from hvdtest.where import tagged

pytestmark = [pytest.mark.jupyter, pytest.mark.mp]


def test_unload_ext_ends_the_ranks_and_takes_the_magics_away(tmp_path: Path) -> None:
    with Kernel(tmp_path, "python3") as kernel:
        kernel.run("%load_ext hvd_kernel")
        assert kernel.run("%%hvdrun -np 1\nsize").shown == ["[0] 1"]
        kernel.run("%unload_ext hvd_kernel")
        until(lambda: set(tagged(kernel.tag)) == {kernel.pid}, "the end of ranks, launcher and supervisor")
        left = "[name for kind in get_ipython().magics_manager.magics.values() for name in kind if 'hvd' in name]"
        assert kernel.run(left).shown == ["[]"]
        said = kernel.run("not_there", allow_error=True)
        assert said.reply["ename"] == "NameError"
        kernel.run("%load_ext hvd_kernel")
        assert kernel.run("%%hvdrun -np 1\nrank").shown == ["[0] 0"]
