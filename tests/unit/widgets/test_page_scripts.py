"""What our own scripts may do in a page (row S10): they make no markup of text, and ask nobody."""

from __future__ import annotations

import re
from pathlib import Path

SCRIPTS = sorted((Path(__file__).parents[3] / "widgets" / "js").rglob("*.js"))
MARKUP = (
    r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b|\bFunction\b|createContextualFragment|DOMParser"
)
REACHES = r"\bfetch\b|XMLHttpRequest|WebSocket|EventSource|sendBeacon|importScripts|https?://|\.src\b|\.href\b"
NAMESPACE = 'xmlns="http://www.w3.org/2000/svg"'
"""Of a picture that a person saves: a name, which nobody is asked for."""

ATTRIBUTES = {"name", '"aria-pressed"', '"aria-label"'}


def test_s10_page_scripts_make_no_markup_and_no_requests() -> None:
    assert SCRIPTS
    assert {path.name: found for path in SCRIPTS if (found := offences(path))} == {}


def offences(path: Path) -> list[str]:
    code = re.sub(r"/\*.*?\*/|(?<!:)//[^\n]*", "", path.read_text(), flags=re.DOTALL)
    code = code.replace(NAMESPACE, "")
    attributes = set(re.findall(r"setAttribute\(([^,]+),", code)) - ATTRIBUTES
    return [*re.findall(MARKUP, code), *re.findall(REACHES, code), *sorted(attributes)]
