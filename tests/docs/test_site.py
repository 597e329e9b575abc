"""The documentation site: links lead somewhere, nothing is loaded from another host, and the search finds the right page."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from functools import cache
from html import unescape
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
from hvdtest.node import needs_node, node
from hvdtest.offenders import ROOT
from website import picture, sources

pytestmark = pytest.mark.timeout(900)  # the first test builds the site, and on a new machine installs what builds it

QUESTIONS = {  # what a newcomer types -> the page that has to be first
    "install": "install",
    "pytorch": "pytorch",
    "first cell": "guides/notebook/first-cell",
    "interrupt a cell": "guides/notebook/stop",
    "replace a dead rank": "guides/notebook/respawn",
    "slurm": "platforms/slurm",
    "kubernetes": "platforms/kubernetes",
    "spark": "spark",
    "ray": "ray",
    "keras": "keras",
    "elastic jobs": "elastic",
    "hvdrun": "hvdrun",
    "magics": "magics",
    "settings": "knobs",
    "timeline": "timeline",
    "troubleshooting": "troubleshooting",
    "horovod project": "migrating",
    "torch.distributed": "torch_distributed",
    "DistributedOptimizer": "reference/generated/hvd_kernel.torch.DistributedOptimizer",
    "allreduce": "reference/generated/hvd_kernel.torch.allreduce",
}
ANCHOR = re.compile(r'\s(?:id|name)="([^"]*)"')
LINK = re.compile(r'<a\s[^>]*?\bhref="([^"]*)"')
LOADED = re.compile(
    r'<(?:script|img|source|iframe|video|audio|embed)\s[^>]*?\bsrc="([^"]*)"|<object\s[^>]*?\bdata="([^"]*)"'
)
RELATION = re.compile(r"<link\s[^>]*>")
DOCUMENTS = {"next", "prev", "index", "search", "canonical", "author", "license"}
"""Relations of <link> whose targets a browser does not load."""
URL = re.compile(r"(?:url\(|@import )\s*['\"]?([^'\")\s]+)")


class Page:
    """Links, anchors, and the files that a browser loads for a page."""

    def __init__(self, text: str) -> None:
        self.links = [unescape(link) for link in LINK.findall(text)]
        self.anchors = {"", *map(unescape, ANCHOR.findall(text))}
        self.loaded = [source or data for source, data in LOADED.findall(text)]
        for element in RELATION.findall(text):
            attributes = dict(re.findall(r'(\w+)="([^"]*)"', element))
            if not set(attributes.get("rel", "").split()) <= DOCUMENTS:
                self.loaded.append(attributes["href"])
        for style in re.findall(r'\sstyle="([^"]*)"|<style[^>]*>(.*?)</style>', text, re.DOTALL):
            self.loaded += URL.findall(unescape("".join(style)))


@cache
def page(path: Path) -> Page:
    return Page(path.read_text())


def pages(site: Path) -> list[Path]:
    return sorted(site.rglob("*.html"))


def is_elsewhere(link: str) -> bool:
    return bool(urlsplit(link).netloc) or link.startswith("//")


def broken(site: Path) -> Iterator[str]:
    files = {str(path) for path in site.rglob("*") if path.is_file()}
    for path in pages(site):
        for link in page(path).links:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            target = os.path.normpath(f"{path.parent}/{unquote(parts.path)}") if parts.path else str(path)
            if target not in files:
                yield f"{path.relative_to(site)}: {link}"
            elif target.endswith(".html") and unquote(parts.fragment) not in page(Path(target)).anchors:
                yield f"{path.relative_to(site)}: {link}: no such heading"


def test_every_page_of_the_repository_is_in_the_site(site: Path) -> None:
    expected = {
        Path(str(sources.place(file))).with_suffix(".html")
        for file in sources.files()
        if file.endswith((".md", ".ipynb"))
    }
    assert len(expected) > 80
    assert not [str(name) for name in sorted(expected) if not (site / name).is_file()]


def test_public_names_have_a_page(site: Path) -> None:
    generated = {path.stem for path in (site / "reference" / "generated").glob("*.html")}
    modules = {name.split(".")[1] for name in generated}
    assert modules >= {"torch", "numpy", "tensorflow", "keras", "jax", "mxnet", "elastic", "spark", "ray"}
    assert {"hvd_kernel.torch.allreduce", "hvd_kernel.run", "hvd_kernel.elastic.run"} <= generated


def test_links_within_the_site_have_targets(site: Path) -> None:
    assert not list(broken(site))


def test_nothing_is_loaded_from_another_host(site: Path) -> None:
    found = [
        f"{path.relative_to(site)}: {link}" for path in pages(site) for link in page(path).loaded if is_elsewhere(link)
    ]
    for path in site.rglob("*.css"):
        found += [f"{path.relative_to(site)}: {link}" for link in URL.findall(path.read_text()) if is_elsewhere(link)]
    assert not found


def test_notebooks_have_their_stored_outputs(site: Path) -> None:
    text = (site / "tutorials" / "01_quickstart.html").read_text()
    assert 'class="cell_output' in text
    assert re.search(r'<img [^>]*src="[^"]*\.svg"', text), "the panel's picture"


def test_architecture_is_drawn_without_a_script(site: Path) -> None:
    text = (site / "architecture.html").read_text()
    assert '<div class="flowchart"><svg ' in text
    assert "mermaid" not in text


@needs_node
def test_search_finds_the_page_of_a_question_first(site: Path) -> None:
    answers = json.loads(node(str(ROOT / "tests" / "docs" / "search.mjs"), str(site), data=json.dumps(list(QUESTIONS))))
    found = {query: names[:3] for query, names in zip(QUESTIONS, answers, strict=True)}
    assert {query: names for query, names in found.items() if names[:1] != [QUESTIONS[query]]} == {}


@pytest.mark.parametrize(
    ("file", "text", "changed"),
    [
        ("docs/notebook.md", "[a](hvdrun.md#b) [c](#d) [e](https://f.g)", "[a](hvdrun.md#b) [c](#d) [e](https://f.g)"),
        ("docs/platforms/slurm.md", "[up](../README.md#x), [a](../ray.md)", "[up](../index.md), [a](../ray.md)"),
        ("CHANGELOG.md", "[a](docs/decisions/0001-a.md)", "[a](decisions/0001-a.md)"),
        ("docs/tutorials/index.md", "[a](../../notebooks/01_a.ipynb)", "[a](01_a.ipynb)"),
        ("docs/notebook.md", "[code](../native/engine/engine.h)", "code"),
        ("docs/notebook.md", "```\n[a](../README.md)\n```", "```\n[a](../README.md)\n```"),
    ],
)
def test_links_fit_the_place_of_the_page(file: str, text: str, changed: str) -> None:
    assert sources.relink(text, file) == changed


def test_line_that_cannot_be_drawn_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"cannot be drawn: a -\.-> b"):
        picture.svg('flowchart TD\n  subgraph one["one"]\n    a["a"]\n  end\n  a -.-> b\n')


def test_broken_link_is_detected(tmp_path: Path) -> None:
    (tmp_path / "a.html").write_text(
        '<a href="gone.html">x</a><a class="c" href="#none">y</a><a href="#b">z</a><p id="b">'
    )
    assert list(broken(tmp_path)) == ["a.html: gone.html", "a.html: #none: no such heading"]


def test_file_of_another_host_is_detected() -> None:
    text = '<script src="https://x.y/a.js"></script><link rel="stylesheet" href="//x.y/b.css"><a href="https://x.y">'
    assert [is_elsewhere(link) for link in Page(text).loaded] == [True, True]
