"""Configuration of the documentation site: ``make docs``. Its source folder is build/docs/source (tools/website)."""

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from docutils import nodes
from docutils.parsers.rst import Directive
from IPython.lib.lexers import IPython3Lexer
from pygments.lexers import PythonLexer
from pygments.token import Keyword
from sphinx.ext.autodoc.mock import ismock, mock

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tools")]

from website import picture
from website.mocks import MOCKED, prepare

project = author = "hvd_kernel"
copyright = "2026, the hvd_kernel developers. Apache-2.0"  # noqa: A001 - the name is Sphinx's
release = (ROOT / "hvd_kernel/version.py").read_text().split('__version__ = "')[1].split('"')[0]
extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "numpydoc",
    "sphinx_copybutton",
    "sphinx_design",
]

# Pages
myst_enable_extensions = ["colon_fence", "attrs_inline"]
myst_heading_anchors = 4
myst_fence_as_directive = ["mermaid"]
nb_execution_mode = "off"  # the outputs that the notebooks store; tests/notebooks executes them
copybutton_prompt_text, copybutton_prompt_is_regexp = r"\$ |>>> |\.\.\. ", True

# API pages from docstrings
with mock(MOCKED):
    prepare()
autodoc_mock_imports = MOCKED
autodoc_typehints = "none"
autosummary_generate = True
templates_path = [str(ROOT / "docs" / "_templates")]  # autosummary resolves others below the source folder
numpydoc_show_class_members = False

# Look. Nothing is loaded from another host: tests/docs/test_site.py.
html_theme = "pydata_sphinx_theme"
html_title = f"hvd_kernel {release}"
html_static_path = ["_static"]
html_css_files = ["hvd.css"]
html_favicon = "_static/logo.svg"
html_search_scorer = str(ROOT / "docs" / "scorer.js")
html_show_sourcelink = html_copy_source = html_show_sphinx = False
html_sidebars = {"index": []}
html_theme_options = {
    "logo": {"text": "hvd_kernel", "image_light": "_static/logo.svg", "image_dark": "_static/logo.svg"},
    "navigation_with_keys": False,
    "navbar_align": "left",
    "header_links_before_dropdown": 6,
    "show_toc_level": 2,
    "secondary_sidebar_items": ["page-toc"],
    "footer_start": ["copyright"],
    "footer_end": [],
    "pygments_light_style": "a11y-high-contrast-light",
    "pygments_dark_style": "a11y-high-contrast-dark",
}


class CellLexer(IPython3Lexer):
    """A %%hvdrun cell is Python below its first line."""

    def get_tokens_unprocessed(self, text: str) -> Iterator[Any]:
        """Return the first line as a keyword, and the tokens of the other lines."""
        head, newline, body = text.partition("\n")
        if not head.startswith("%%hvdrun"):
            yield from super().get_tokens_unprocessed(text)
            return
        yield 0, Keyword, head + newline
        for place, kind, value in PythonLexer().get_tokens_unprocessed(body):
            yield place + len(head + newline), kind, value


class Mermaid(Directive):
    """A flowchart of a page as an inline SVG, so that it needs no script and has the colours of the theme."""

    has_content = True

    def run(self) -> list[nodes.Node]:
        """Return the picture."""
        return [nodes.raw("", picture.svg("\n".join(self.content)), format="html")]


def short_defaults(_app: Any, _kind: Any, _name: Any, _object: Any, _options: Any, signature: str, returns: str) -> Any:
    """Shorten compression=<class 'a.b.NoneCompressor'> to compression=NoneCompressor."""
    return signature and (re.sub(r"<class '[\w.]*\.(\w+)'>", r"\1", signature), returns)


def skip_stand_ins(_app: Any, _kind: str, _name: str, member: Any, _skip: bool, _options: Any) -> bool | None:
    """Leave out attributes that are objects of a missing framework, such as the parameters of a Spark estimator."""
    return True if ismock(member) else None


def omit_decisions(app: Any, _doctree: Any) -> None:
    """Leave decisions out of the search, in which they would precede the guides."""
    if app.env.docname.startswith("decisions/"):
        app.env.metadata[app.env.docname]["nosearch"] = ""


def setup(app: Any) -> dict[str, bool]:
    """Connect lexer, directive and hooks."""
    app.add_lexer("ipython3", CellLexer)
    app.add_lexer("ipython", CellLexer)
    app.add_directive("mermaid", Mermaid)
    app.connect("autodoc-process-signature", short_defaults)
    app.connect("autodoc-skip-member", skip_stand_ins)
    app.connect("doctree-read", omit_decisions)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
