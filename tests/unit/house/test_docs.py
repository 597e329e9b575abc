"""README, CONTRIBUTING and docs/ name existing files, tests, links and anchors, make targets and magics.

A source may name a page or a file in its comments and docstrings too, and that page or file is there.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from hvdtest.offenders import NATIVE_SUFFIXES, PRODUCT, ROOT, assert_kept, sources, text, tree

from hvd_kernel.magics.commands.index import MAGICS
from hvd_kernel.magics.commands.table import SUBCOMMANDS

Lines = Iterator[tuple[int, str]]

PATH = re.compile(  # tests/unit/house/test_docs.py::test_links_have_targets, native/engine/, tests/native/*/*.cc
    r"(?<![\w./-])((?:hvd_kernel|native|magics|widgets|notebooks|tests|tools|docs|\.ci)/[\w./*-]*[\w*/])(?:::(\w+))?"
)
MODULE = re.compile(r"(?<![\w./-])((?:cluster|worker|torch|launch|kernel)/\w+)\b(?![./])")  # in the README's pictures
LINK = re.compile(r"\[[^\]\n]*\]\(([^)\s]+)\)")
MAKE = re.compile(r"(?:`|^ *)make ([a-z][\w-]*)")
ONE_TEST = re.compile(r"pytest \"?(tests/[\w/]+\.py)\"? .*?-k \"?(\w+)")
MAGIC = re.compile(r"(?:`|^ *)(%%?hvd[a-z]*)(?: ([a-z]+))?")
EXAMPLE = re.compile(r'^SUBCOMMANDS\["(\w+)"\] = ', re.MULTILINE)  # a sub-command that the page itself makes
ROW = re.compile(r'^MAGICS\["(%+\w+)"\] = ', re.MULTILINE)  # the same of a magic
PAGE = re.compile(r"(?<![\w/])docs/(?:decisions/\d{4}|[\w/-]+\.md)")  # a decision is known by its number
FILE = re.compile(r"(?<![\w./:<{-])((?:[\w-]+/)*[\w-]+\.(?:py|cc|h|cu|cuh|js|mjs|md))\b(?![\w/*(])")  # in a comment
SUFFIX = re.compile(r"(?<=\w)\.(?:py|cc|h|cu|cuh|js|mjs|md)\b")
OF_OTHERS = {  # files of users, of libraries and of Horovod
    *("train.py", "setup.py", "mpi.h", "mxnet/c_api.h", "horovod/common/exceptions.py"),
    "gradient/cli/experiments.py",
}
REGISTRY = re.compile(r"pip install (?:-\S+ )*['\"]?(hvd[-_]kernel(?!-\d)\S*)")  # a wheel's file name has a version
FENCE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)


def pages() -> list[Path]:
    return [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sources("docs", suffixes={".md"})]


def prose(page: Path) -> str:
    """The page with its blocks of code left blank, line by line."""
    return FENCE.sub(lambda block: "\n" * block[0].count("\n"), text(page))


def missing_paths(page: Path) -> Lines:
    for number, line in enumerate(text(page).splitlines(), 1):
        for path, test in PATH.findall(line):
            there = [*ROOT.glob(path), *ROOT.glob(f"{path}.py")]
            if not there:
                yield number, f"{path} is not there"
            elif test and f"def {test}(" not in text(there[0]):
                yield number, f"{path} has no {test}"
        for module in MODULE.findall(line):
            if not (ROOT / "hvd_kernel" / f"{module}.py").exists():
                yield number, f"there is no hvd_kernel/{module}.py"


def anchors(page: Path) -> set[str]:
    """The anchors that GitHub gives to the headings of a page."""
    titles = re.findall(r"^#+ (.+)$", prose(page), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}


def broken_links(page: Path) -> Lines:
    for number, line in enumerate(prose(page).splitlines(), 1):
        for target in LINK.findall(line):
            file, _, anchor = target.partition("#")
            there = page.parent / file if file else page
            if re.match(r"[a-z]+:", target):
                continue
            if not there.exists():
                yield number, f"the link to {target} leads nowhere"
            elif anchor and anchor not in anchors(there):
                yield number, f"{file or 'this page'} has no heading #{anchor}"


def unknown_targets(page: Path) -> Lines:
    rules = re.findall(r"^([\w -]+):", text(ROOT / "Makefile"), re.MULTILINE)
    known = {target for rule in rules for target in rule.split()}
    for number, line in enumerate(text(page).splitlines(), 1):
        yield from ((number, f"there is no make {target}") for target in MAKE.findall(line) if target not in known)


def unknown_magics(page: Path) -> Lines:
    for number, line in enumerate(text(page).splitlines(), 1):
        for magic, verb in MAGIC.findall(line):
            if magic not in {*MAGICS, *ROW.findall(text(page))}:
                yield number, f"there is no {magic}"
            elif magic == "%hvd" and verb and verb not in {*SUBCOMMANDS, *EXAMPLE.findall(text(page))}:
                yield number, f"there is no %hvd {verb}"


def empty_selections(page: Path) -> Lines:
    for number, line in enumerate(text(page).splitlines(), 1):
        for file, word in ONE_TEST.findall(line):
            if not re.search(rf"def test_\w*{word.removeprefix('test_')}", text(ROOT / file)):
                yield number, f"-k {word} selects no test of {file}"


def missing_pages(source: Path) -> Lines:
    for number, line in enumerate(text(source).splitlines(), 1):
        yield from ((number, f"{page} is not there") for page in PAGE.findall(line) if not any(ROOT.glob(f"{page}*")))


def comments(source: Path) -> Lines:
    """Comments and docstrings of a source, line by line."""
    lines = text(source).splitlines()
    if source.suffix != ".py":
        yield from ((number, line.partition("//")[2]) for number, line in enumerate(lines, 1))
        return
    for token in tokenize.generate_tokens(io.StringIO(text(source)).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string
    for node in ast.walk(tree(source)):
        match node:
            case ast.Expr(value=ast.Constant(value=str()), lineno=first, end_lineno=int(last)):
                yield from enumerate(lines[first - 1 : last], first)


def missing_files(source: Path) -> Lines:
    """Yield files that comments name and that do not exist: a path from here or a room, or a name alone."""
    folders = (ROOT, ROOT / "hvd_kernel", ROOT / "native", source.parent, source.parent.parent)
    for number, line in comments(source) if SUFFIX.search(text(source)) else ():  # most sources name none
        for file in FILE.findall(line) if SUFFIX.search(line) else ():
            exists = any((folder / file).exists() for folder in folders) if "/" in file else file in names_of_files()
            if not exists and file not in OF_OTHERS:
                yield number, f"{file} does not exist"


@cache
def names_of_files() -> frozenset[str]:
    folders = (*PRODUCT, "native", "tests", "tools", "docs", "notebooks")
    suffixes = {".py", ".js", ".mjs", ".md", *NATIVE_SUFFIXES}
    return frozenset(path.name for path in [*sources(*folders, suffixes=suffixes), *ROOT.glob("*.md")])


def packages_of_a_registry(source: Path) -> Lines:
    for number, line in enumerate(text(source).splitlines(), 1):
        for package in REGISTRY.findall(line):
            yield number, f"{package}: no registry has this package, and anybody could register its name"


def test_paths_named_in_the_docs_exist() -> None:
    assert_kept("paths in the docs exist", pages(), missing_paths)


def test_links_have_targets() -> None:
    assert_kept("links in the docs lead somewhere", pages(), broken_links)


def test_the_index_leads_to_every_page() -> None:
    index = ROOT / "docs" / "README.md"
    listed = {(index.parent / target).resolve() for target in LINK.findall(text(index))}
    wanted = {page for page in sources("docs", suffixes={".md"}) if page.parent.name != "decisions"} - {index}
    assert not wanted - listed


def test_targets_of_make_exist() -> None:
    assert_kept("targets of make in the docs exist", pages(), unknown_targets)


def test_magics_exist() -> None:
    assert_kept("magics in the docs exist", pages(), unknown_magics)


def test_commands_for_one_test_select_one() -> None:
    assert_kept("commands for one test select one", pages(), empty_selections)


def test_install_lines_use_a_checkout_or_a_wheel() -> None:
    files = [*pages(), *sources(*PRODUCT, suffixes={".py", ".js"}), *sources("notebooks", suffixes={".ipynb"})]
    assert_kept("install lines use a checkout or a wheel", files, packages_of_a_registry)


def test_pages_that_sources_name_exist() -> None:
    files = sources(*PRODUCT, "native", "tests", "tools", suffixes={".py", ".js", ".sh", ".toml", *NATIVE_SUFFIXES})
    ours = [path for path in files if ROOT / "tests" / "unit" not in path.parents]  # where pages are made up
    assert_kept("pages that sources name exist", [*ours, ROOT / "Makefile"], missing_pages)


def test_files_named_in_comments_exist() -> None:
    files = sources(*PRODUCT, "native", "tools", suffixes={".py", ".js", *NATIVE_SUFFIXES})
    ours = [path for path in files if "static" not in path.parts]
    assert_kept("files named in comments exist", ours, missing_files)


@pytest.mark.parametrize(
    ("broken", "line"),
    [
        (missing_paths, "see `tools/nothing.py`"),
        (missing_paths, "tests/native/nothing*"),
        (missing_paths, "`tests/unit/house/test_docs.py::test_nothing`"),
        (missing_paths, "cluster/nothing ── here"),
        (broken_links, "[a page](nothing.md)"),
        (broken_links, "[a heading](#nothing)"),
        (unknown_targets, "`make nothing`"),
        (unknown_magics, "`%%hvdnothing`"),
        (unknown_magics, "`%hvd nothing`"),
        (empty_selections, "pytest tests/unit/house/test_docs.py -k anything_but_this"),
        (missing_pages, "// As in docs/nothing.md."),
        (missing_pages, "// As in docs/decisions/9999."),
        (missing_files, "// As in engine/nothing.h."),
        (missing_files, "// As in nothing.py."),
        (packages_of_a_registry, "pip install --upgrade 'hvd-kernel[nothing]'"),
    ],
)
def test_rules_detect_violations(*, broken, line: str, tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"# A heading\n\n{line}\n")
    with pytest.raises(AssertionError, match=r"page\.md:3: .*(nothing|9999|selects no)"):
        assert_kept("a rule", [page], broken)


def test_a_heading_is_an_anchor_and_code_is_no_link(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# The `%hvd` magic, again\n\n```\n# no heading\nx[0](1)\n```\n[up](#the-hvd-magic-again)\n")
    assert anchors(page) == {"the-hvd-magic-again"}
    assert not list(broken_links(page))


def test_glossary_is_sorted_and_has_sources() -> None:
    glossary = text(ROOT / "docs" / "glossary.md")
    entries = re.findall(r"^- \*\*(.+?)\*\*: ([A-Z].+\n  .+ \*\(.+\)\*)$", glossary, re.MULTILINE)
    words = [word.lower() for word, _ in entries]
    assert words == sorted(set(words))
    assert len(words) == glossary.count("\n- ")
