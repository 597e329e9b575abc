"""Python program of a rank, parsed from its command line, so that another process can run it later.

``python -u train.py --lr 0.1`` or ``python -m my.training``; any other command must be started itself.
"""

from __future__ import annotations

import re
import runpy
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType

_INTERPRETER = re.compile(r"python(\d+(\.\d+)*)?")
_FLAGS = frozenset("bBdEIOPqRsSuv")
"""Python's options of one letter that change how a program runs, and take no value."""
_WITH_VALUE = ("-W", "-X")


@dataclass(frozen=True)
class Program:
    """One Python program with its arguments."""

    interpreter: str
    options: tuple[str, ...]
    module: bool  # named as a module, not as a file
    name: str
    arguments: tuple[str, ...]

    @property
    def has_folder(self) -> bool:
        """True if Python searches for modules in the program's folder."""
        letters = "".join(option[1:] for option in self.options if option[:2] not in _WITH_VALUE)
        return not set("IP") & set(letters)

    def waiting(self, entry: str) -> list[str]:
        """Return the command of a process that runs it later; ``entry``: the module that it starts with."""
        return [self.interpreter, *self.options, "-P", "-m", entry, self.name, *self.arguments]

    def run(self) -> None:
        """Run it in this process, as ``__main__``."""
        sys.argv = [self.name, *self.arguments]
        if self.has_folder:
            sys.path.insert(0, str(Path.cwd() if self.module else Path(self.name).resolve().parent))
        main = sys.modules["__main__"] = ModuleType("__main__")
        if self.module:
            # As Python does for -m: run_module would remove __main__ at its end, while threads may still use it.
            runpy._run_module_as_main(self.name)  # type: ignore[attr-defined]  # noqa: SLF001
        else:
            _run_file(str(Path(self.name).absolute()), main)


def _run_file(path: str, main: ModuleType) -> None:
    loader = SourceFileLoader("__main__", path)
    vars(main).update(__file__=path, __loader__=loader, __cached__=None)
    exec(loader.source_to_code(loader.get_data(path), path), vars(main))  # noqa: S102 - the user's own program


def program_of(command: Sequence[str]) -> Program | None:
    """Return the Python program that a command runs; None if it is not a module or a ``.py`` file.

    Examples
    --------
    >>> program = program_of(["/usr/bin/python3", "-u", "-W", "error", "train.py", "--lr", "0.1"])
    >>> program.options, program.name, program.arguments
    (('-u', '-W', 'error'), 'train.py', ('--lr', '0.1'))
    >>> program_of(["bash", "train.sh"]) is None
    True
    """
    interpreter, *words = command
    if not _INTERPRETER.fullmatch(Path(interpreter).name):
        return None
    options: list[str] = []
    while words:
        word, *words = words
        if word == "-m" and words:
            return Program(interpreter, (*options,), True, words[0], (*words[1:],))
        if not word.startswith("-"):
            if not word.endswith(".py"):
                return None
            return Program(interpreter, (*options,), False, word, (*words,))
        options.append(word)
        if word in _WITH_VALUE and words:
            options.append(words.pop(0))
        elif not (word.startswith(_WITH_VALUE) or (len(word) > 1 and set(word[1:]) <= _FLAGS)):
            return None
    return None
