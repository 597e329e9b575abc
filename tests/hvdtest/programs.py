"""Programs of tests: files that run as one ``__main__`` in an environment without our tests.

What a ``__main__`` defines travels by value to executors and actors, which import none of our files. So files are
joined; each imports what the others define only for linters and type checkers.
"""

from __future__ import annotations

from pathlib import Path

from hvdtest.launch import TESTS

SHARED = TESTS / "programs"


def text_of(*files: str | Path) -> str:
    """Return one program of several files; a name is that of a file in tests/programs."""
    paths = [SHARED / f"{file}.py" if isinstance(file, str) else file for file in files]
    return "\n".join(path.read_text() for path in paths)
