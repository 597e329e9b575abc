"""Programs of tests: files that run as one ``__main__`` in an environment without our tests.

What a ``__main__`` defines travels by value to executors and actors, which import none of our files. So files are
joined; each imports what the others define only for linters and type checkers.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hvdtest.launch import TESTS

SHARED = TESTS / "programs"


def text_of(*files: str | Path) -> str:
    """Return one program of several files; a name is that of a file in tests/programs."""
    paths = [SHARED / f"{file}.py" if isinstance(file, str) else file for file in files]
    return "\n".join(path.read_text() for path in paths)


def assert_interrupted(results: Mapping[str, Any]) -> None:
    """Check the case ``interrupted`` of notebook_cells: the cell ends, and variables are kept."""
    (_, error), after = results["interrupted"]
    assert error == "KeyboardInterrupt: ranks 0-1 interrupted, variables are kept"
    assert after[0].endswith("[0-1] [0, 10]\n"), "a slow machine may show which ranks wait"
    assert after[1] == ""


def assert_respawned(results: Mapping[str, Any]) -> None:
    """Check the case ``died`` of notebook_cells: the cell names the dead rank, whose replacement has no variables."""
    (_, error), (text, _), after = results["died"]
    death = r"RankDied: rank 1 \(process \d+ on \S+\) died: it exited with os\._exit\(3\) in a cell, line 2;"
    assert re.match(death, error)
    assert "rank 1 is fresh: its variables are missing" in text
    assert after[0].endswith("[0-1] [0, None]\n"), "a slow machine may show which ranks wait"
    assert after[1] == ""
