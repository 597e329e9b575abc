"""The table of the magics and that of the sub-commands of %hvd: found, refused with the nearest one, listed, completed."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from types import SimpleNamespace

import pytest
from hvdtest.magic_lines import parse
from hvdtest.offenders import ROOT
from IPython.core.interactiveshell import InteractiveShell
from IPython.utils.capture import capture_output

from hvd_kernel.errors import UsageError
from hvd_kernel.magics import load_ipython_extension, unload_ipython_extension
from hvd_kernel.magics.__main__ import page
from hvd_kernel.magics.commands.index import MAGICS
from hvd_kernel.magics.commands.table import SUBCOMMANDS, find, usage

README = (ROOT / "README.md").read_text()


@pytest.fixture(scope="module")
def shell() -> Iterator[InteractiveShell]:
    made = InteractiveShell()
    load_ipython_extension(made)
    yield made
    unload_ipython_extension(made)


def complete(shell: InteractiveShell, line: str) -> list[str]:
    command, symbol = line.split(maxsplit=1)[0], line.rpartition(" ")[2]
    event = SimpleNamespace(line=line, symbol=symbol, command=command)
    (completer,) = shell.strdispatchers["complete_command"].s_matches(command)
    return list(completer(event))


def test_default_subcommand_is_status() -> None:
    assert find(parse("%hvd", "")) is SUBCOMMANDS["status"]
    assert find(parse("%hvd", "help")) is SUBCOMMANDS["help"]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("stats", "%hvd: 'stats' is not understood: did you mean status?; %hvd help lists the commands"),
        ("restrat now", "%hvd: 'restrat now' is not understood: did you mean restart?; %hvd help lists the commands"),
        ("zip", "%hvd: 'zip' is not understood; %hvd help lists the commands"),
        ("stop now", "%hvd: 'stop now' has too many arguments: write %hvd stop"),
    ],
)
def test_unknown_subcommand_names_the_nearest_one(line: str, said: str) -> None:
    with pytest.raises(UsageError) as error:
        find(parse("%hvd", line))
    assert str(error.value) == said


def test_help_lists_every_subcommand() -> None:
    assert all(f"    {word.usage} " in usage() for word in SUBCOMMANDS.values())


@pytest.mark.parametrize("name", MAGICS)
def test_a_row_is_a_magic_whose_help_has_its_line_and_every_flag(shell: InteractiveShell, name: str) -> None:
    row, kind = MAGICS[name], "cell" if name.startswith("%%") else "line"
    help_of = shell.magics_manager.lsmagic_docs()[kind][name.strip("%")]
    assert help_of == row.doc().rstrip()
    assert f"    {row.usage}" in help_of
    assert [flag.dest for flag in row.flags if f"    {flag.usage()} " not in help_of] == []
    assert not [flag.dest for flag in row.flags if not flag.help]


EXAMPLES = {**MAGICS, **{f"%hvd {name}": word for name, word in SUBCOMMANDS.items()}}


@pytest.mark.parametrize("name", EXAMPLES)
def test_every_row_has_an_example_that_can_be_typed(name: str) -> None:
    row = EXAMPLES[name]
    magic, _, rest = row.example.partition(" ")
    assert f"{row.example} ".startswith(f"{name} ")
    assert not re.search(r"[\[\]|]|\b[A-Z]{2,}\b", rest), "a name for a value, not a value"
    options = MAGICS[magic].parse(rest)
    assert name in MAGICS or find(options) is row
    assert name not in MAGICS or f"    {row.example}\n" in MAGICS[name].doc()


def test_flags_of_a_row_are_fields_of_the_options() -> None:
    for row in MAGICS.values():
        assert len({flag.dest for flag in row.flags}) == len(row.flags), row.name
        assert all(hasattr(row.parse(""), flag.dest) for flag in row.flags), row.name


def test_only_the_tables_are_registered(shell: InteractiveShell) -> None:
    there = {
        f"{'%%' if kind == 'cell' else '%'}{name}"
        for kind, magics in shell.magics_manager.lsmagic().items()
        for name in magics
        if name.startswith("hvd")
    }
    assert there == set(MAGICS)


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("%hvd ", list(SUBCOMMANDS)),
        ("%hvd timeline ", ["save", "start", "stop", "show"]),
        ("%hvdauto ", ["on", "off"]),
        ("%hvdpush pushed_v", ["pushed_value"]),
        ("%hvdlogs -", ["--ranks", "--targets", "-t", "--cell", "--tail", "--stream", "--path", "--help"]),
        ("%hvdlogs ", ["--ranks", "--targets", "-t", "--cell", "--tail", "--stream", "--path", "--help"]),
        ("%hvdcancel ", ["--help"]),
        ("%hvdpull x", []),
    ],
)
def test_completion_is_made_of_the_rows(shell: InteractiveShell, line: str, found: list[str]) -> None:
    shell.user_ns["pushed_value"] = 1
    assert complete(shell, line) == found


@pytest.mark.parametrize("name", MAGICS)
def test_every_magic_shows_its_help_and_does_nothing(shell: InteractiveShell, name: str) -> None:
    with capture_output() as shown:
        if name.startswith("%%"):
            shell.run_cell_magic(name.strip("%"), "--help", "1 / 0")
        else:
            shell.run_line_magic(name.strip("%"), "--help")
    assert shown.stdout == MAGICS[name].doc()


@pytest.mark.parametrize("name", SUBCOMMANDS)
def test_every_subcommand_shows_its_help_and_does_nothing(shell: InteractiveShell, name: str) -> None:
    with capture_output() as shown:
        shell.run_line_magic("hvd", f"{name} --help")
    assert shown.stdout == SUBCOMMANDS[name].help()
    assert f"    {SUBCOMMANDS[name].usage}\n" in shown.stdout
    assert f"    {SUBCOMMANDS[name].example}\n" in shown.stdout


@pytest.mark.parametrize("name", MAGICS)
def test_every_option_is_completed_and_misspellings_reported(shell: InteractiveShell, name: str) -> None:
    row = MAGICS[name]
    spellings = [spelling for flag in row.flags for spelling in flag.spellings]
    assert complete(shell, f"{name} -") == spellings
    for spelling in (each for each in spellings if len(each) > len("--rank")):
        if row.text:
            continue  # what is no option is text
        with pytest.raises(UsageError, match=f"is not an option: did you mean {spelling}"):
            row.parse(f"{spelling[:3]}{spelling[4:]}")


@pytest.mark.parametrize("name", SUBCOMMANDS)
def test_misspelled_option_names_the_nearest_one(name: str) -> None:
    with pytest.raises(UsageError, match="is not understood: did you mean "):
        find(parse("%hvd", f"{name}x"))


def test_the_page_is_the_tables() -> None:
    written = (ROOT / "docs" / "magics.md").read_text()
    assert written == page(), "write it again: python -m hvd_kernel.magics > docs/magics.md"


def test_the_module_prints_the_page() -> None:
    printed = subprocess.run([sys.executable, "-m", "hvd_kernel.magics"], capture_output=True, text=True, check=True)
    assert printed.stdout == page()


@pytest.mark.parametrize("name", [name for name in MAGICS if name != "%hvd"])
def test_the_readme_names_every_magic(name: str) -> None:
    assert f"`{name} " in README or f"`{name}`" in README
