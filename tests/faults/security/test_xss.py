"""Hostile text in every place where text of ranks is shown: it is shown, and nothing of it runs, loads or is followed.

Rows H4, S10, S11. Three readers: the widget's module in a bare page under the strictest policy, the static picture, and a
saved notebook as nbconvert's HTML. HTML that a user displays on purpose is the user's own and is not looked at here.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterator
from contextlib import contextmanager

import nbformat
import pytest
from hvdtest.lab import ROOT, blank_page
from hvdtest.place import Place
from nbconvert import HTMLExporter
from playwright.sync_api import Page, Route

from hvd_kernel.magics.display.user_errors import merged_error
from hvd_kernel.protocol.messages import Failure, MetricsSample
from hvd_kernel.widgets.board import Board
from hvd_kernel.widgets.dashboard import Dashboard, Panel

pytestmark = [pytest.mark.browser, pytest.mark.timeout(400)]

RUN = "window.__ran=(window.__ran||0)+1"
CORPUS = [
    # script
    f"<script>{RUN}</script>",
    f"</script><script>{RUN}</script>",
    f"<ScRiPt >{RUN}</sCrIpT>",
    f"<script\n>{RUN}</script\n>",
    f"<<script>{RUN}//<</script>",
    f"<script src='data:text/javascript,{RUN}'></script>",
    f"<script type=module>{RUN}</script>",
    f"<script>/*</script><script>*/{RUN}</script>",
    f"\x00<scr\x00ipt>{RUN}</script>",
    f"<x:script xmlns:x='http://www.w3.org/1999/xhtml'>{RUN}</x:script>",
    # handlers
    f'<img src=x onerror="{RUN}">',
    f"<img src=x:x onerror={RUN}//",
    f"<img/src/onerror={RUN}>",
    f'"><img src=x onerror="{RUN}">',
    f"'><img src=x onerror='{RUN}'>",
    f"`><img src=x onerror=`{RUN}`>",
    f"<body onload={RUN}>",
    f"<video><source onerror={RUN}></video>",
    f"<audio src=x onerror={RUN}>",
    f"<details open ontoggle={RUN}>x</details>",
    f"<input autofocus onfocus={RUN}>",
    f"<select autofocus onfocus={RUN}>",
    f"<marquee onstart={RUN}>x</marquee>",
    f"<div style=animation-name:x onanimationstart={RUN}>",
    f"<a onmouseover={RUN} tabindex=1 autofocus onfocus={RUN}>x</a>",
    # svg and math
    f"<svg onload={RUN}>",
    f'"><svg/onload="{RUN}">',
    f"<svg><script>{RUN}</script></svg>",
    f"</text></svg><svg onload={RUN}><text>",
    f"]]></text><script>{RUN}</script>",
    f"<svg><animate onbegin={RUN} attributeName=x dur=1s>",
    f"<svg><a xlink:href='javascript:{RUN}'><text>x</text></a></svg>",
    f"<svg><use href='data:image/svg+xml,<svg id=x onload={RUN}/>#x'/></svg>",
    f"<svg><foreignObject><iframe onload={RUN}></foreignObject></svg>",
    f'<math><mi//xlink:href="data:x,<script>{RUN}</script>">',
    f"<!DOCTYPE x [<!ENTITY y '{RUN}'>]>&y;",
    # links and frames
    f"<a href='javascript:{RUN}'>x</a>",
    f"<a href=' &#1;javascript:{RUN}'>x</a>",
    f"[x](javascript:{RUN})",
    f"javascript:{RUN}",
    f"<iframe srcdoc='<script>parent.{RUN}</script>'></iframe>",
    f"<iframe src='javascript:parent.{RUN}'></iframe>",
    f"<object data='javascript:{RUN}'></object>",
    f"<embed src='javascript:{RUN}'>",
    f"<form action='javascript:{RUN}'><button autofocus>x</button></form>",
    f"<meta http-equiv=refresh content='0;url=javascript:{RUN}'>",
    "<base href='https://evil.invalid/'>",
    "<link rel=stylesheet href='https://evil.invalid/x.css'>",
    "<img src='https://evil.invalid/leak'>",
    # style
    "</style><style>*{display:none !important}",
    "<style>@import 'https://evil.invalid/x.css';</style>",
    "red;background:url(https://evil.invalid/x)",
    # DOM clobbering
    "<form id=hvd><input name=parentNode><input name=attributes></form>",
    "<a id=document><a id=document name=cookie href=x>",
    "<img name=getElementById><img name=createElement>",
    # mutation
    f'<noscript><p title="</noscript><img src=x onerror={RUN}>">',
    f"<math><mtext><table><mglyph><style><img src=x onerror={RUN}>",
    f"<svg></p><style><a id='</style><img src=1 onerror={RUN}>'>",
    f'<listing>&lt;img src=1 onerror="{RUN}"&gt;</listing>',
    f"<template><script>{RUN}</script></template>",
    # templates, terminals, bidi, prototypes
    f"${{{RUN}}} {{{{constructor.constructor('{RUN}')()}}}}",
    f"\x1b]8;;javascript:{RUN}\x07link\x1b]8;;\x07",
    f"\x1b]0;{RUN}\x07\x1b[2J\x1b[31;1mred\x1b[0m\x1bP+q544e\x1b\\",
    f"\x1b[<img src=x onerror={RUN}>m",
    "\u202e</div>\u2066</article>\u2069\u200f",
    "__proto__",
    "constructor",
    "toString",
    "\ud7ff\ufffe\x7f\x85\u2028</script>",
]  # fmt: skip
STRANGE = (
    "img, script, svg, iframe, style, form, a, input, math, noscript, object, embed, video, audio, base, link, meta"
)
HOOKS = """
window.__ran = 0; window.__called = [];
for (const name of ["alert", "confirm", "prompt", "open", "fetch"]) window[name] = (...a) => { window.__called.push([name, String(a[0])]); };
navigator.sendBeacon = (u) => window.__called.push(["beacon", String(u)]);
"""
POLICY = "default-src 'none'; script-src 'self'; style-src 'unsafe-inline'"


@contextmanager
def page(files: dict[str, tuple[str, str]], policy: str = "") -> Iterator[tuple[Page, list[str]]]:
    """Open a page that serves these paths (path -> type and text) without network access; record its requests elsewhere."""
    asked: list[str] = []

    def answer(route: Route) -> None:
        path = route.request.url.removeprefix("http://hvd.test")
        if path in files:
            kind, text = files[path]
            headers = {"Content-Security-Policy": policy} if policy else {}
            route.fulfill(body=text, content_type=f"{kind}; charset=utf-8", headers=headers)
        else:
            asked.append(route.request.url)
            route.abort()

    with blank_page() as one:
        one.add_init_script(HOOKS)
        one.on("dialog", lambda dialog: (asked.append(f"dialog {dialog.message}"), dialog.dismiss()))
        one.route("**/*", answer)
        yield one, asked


def harmless(one: Page, asked: list[str]) -> None:
    one.wait_for_timeout(300)  # handlers of elements that load, begin or fail get their turn
    assert one.evaluate("window.__ran") == 0
    assert one.evaluate("window.__called") == []
    assert one.evaluate("Object.keys(Object.prototype)") == []
    assert [url for url in asked if "favicon" not in url] == []


def hostile_board(few: list[str]) -> Board:
    """Return a board whose every text is hostile: title, names, states, operations, streams, lines, the sentence about waiting."""
    board = Board(range(len(few)), few[0], lambda: 1.0)
    for step in range(4):
        for rank, payload in enumerate(few):
            names = {each: float(step) for each in few}
            board.feed(MetricsSample(rank, step * 0.3, payload, few[-1 - rank], step, step, names))
            board.log.feed(rank, payload if rank % 2 else "stderr", f"{payload}\n{payload}")
    return board


def test_corpus_is_large_and_covers_all_kinds() -> None:
    assert len(CORPUS) == len(set(CORPUS)) >= 60


@pytest.mark.parametrize("finished", [False, True])
def test_h4_s10_the_widget_shows_hostile_text_as_text(*, finished: bool) -> None:
    module = (ROOT / "widgets" / "static" / "dashboard.js").read_text()
    files = {"/": ("text/html", "<!doctype html><main></main>"), "/dashboard.js": ("text/javascript", module)}
    draw = """async (snapshot) => {
        const widget = (await import("/dashboard.js")).default();
        const listeners = {};
        const model = { get: () => snapshot, on: (name, f) => { listeners[name] = f; }, off() {}, send() {} };
        widget.initialize({ model });
        const el = document.createElement("div");
        document.querySelector("main").replaceChildren(el);
        widget.render({ model, el });
        await new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)));
        return el.textContent; }"""
    with page(files, POLICY) as (one, asked):
        one.goto("http://hvd.test/")
        for at in range(0, len(CORPUS), 8):
            few = CORPUS[at : at + 8]
            board = hostile_board(few)
            if finished:
                board.finish(dict(enumerate(few)))
            text = one.evaluate(draw, json.loads(json.dumps(board.snapshot())))
            assert few[0] in text, "the title is there, as it is"
            assert one.evaluate(f"document.querySelectorAll('.hvd :is({STRANGE})').length") == 0, few
            assert not re.search(r"[\x1b\u202e\u2066]", "".join(one.locator(".hvd-line").all_text_contents()))
        harmless(one, asked)


def test_h4_s10_the_picture_runs_nothing_alone_and_inside_a_page() -> None:
    files = {}
    for at in range(0, len(CORPUS), 8):
        few = CORPUS[at : at + 8]
        board = Dashboard(range(len(few)), few[0])
        for rank, payload in enumerate(few):
            for step in range(3):
                board.feed(MetricsSample(rank, step * 0.3, payload, payload, step, step, {p: float(step) for p in few}))
        board.finish(dict(enumerate(few)))
        svg = board.static_bundle()[0]["image/svg+xml"]
        assert "<script" not in svg
        assert not re.search(r"<[^>]*\son\w+=", svg)
        files[f"/alone{at}.svg"] = ("image/svg+xml", svg)
        files[f"/inside{at}"] = ("text/html", f"<!doctype html><meta charset=utf-8><body>{svg}")
    with page(files) as (one, asked):
        for path in files:
            one.goto(f"http://hvd.test{path}")
            assert one.evaluate("document.querySelectorAll('parsererror, img, iframe, form, script, a').length") == 0, (
                path
            )
            harmless(one, asked)


@pytest.mark.jupyter
@pytest.mark.mp
def test_h4_s10_text_in_a_saved_notebook_runs_nothing(place: Place) -> None:
    cells = []
    for code in (
        f"%%hvdrun\nfor text in {CORPUS!r}: print(text)",
        f"%%hvdrun\nimport sys\nfor text in {CORPUS!r}: print(text, file=sys.stderr)",
        f"%%hvdrun\n{CORPUS!r}[rank]",
        f"%%hvdrun\nhvd.allreduce(torch.ones(1 + rank), name={CORPUS[10]!r})",
        f"%%hvdrun\nimport socket\nsocket.gethostname = lambda: {CORPUS[10]!r}\nraise OSError({CORPUS[0]!r}, {CORPUS[11]!r}, {CORPUS[13]!r})",
        *(f"%%hvdrun\nraise ValueError({payload!r})" for payload in CORPUS[::7]),
    ):
        outcome = place.run(code, allow_error=True)
        kept = [m for m in outcome.messages if m["msg_type"] in ("stream", "display_data", "execute_result", "error")]
        assert kept, code
        assert {mime for m in kept for mime in m["content"].get("data", {})} <= {"text/plain"}
        cells.append(nbformat.v4.new_code_cell("", outputs=[nbformat.v4.output_from_msg(m) for m in kept]))
    _show(cells)


def test_h4_s10_forged_failures_run_nothing() -> None:
    """Class names, tracebacks and messages of a rank are shown unchanged: a byzantine rank may write anything."""
    cells = []
    for at in range(0, len(CORPUS), 6):
        few = CORPUS[at : at + 6]
        error = merged_error([Failure(r, p, p, (p, f"{p}\n{p}"), r * 2.0, r > 3) for r, p in enumerate(few)])
        output = nbformat.v4.new_output("error", ename=few[0], evalue=str(error), traceback=list(error.lines))
        cells.append(nbformat.v4.new_code_cell("", outputs=[output]))
    _show(cells)


def _show(cells: list[nbformat.NotebookNode]) -> None:
    """Open nbconvert's HTML of these cells, with their outputs alone: its own scripts from elsewhere are not fetched."""
    html, _ = HTMLExporter().from_notebook_node(nbformat.v4.new_notebook(cells=cells))
    with page({"/": ("text/html", html)}) as (one, asked):
        one.goto("http://hvd.test/", wait_until="domcontentloaded")
        inside = ".jp-OutputArea-output :is(img, script, svg, iframe, style, form, input, math, object, embed, base, link, meta)"
        assert one.evaluate(f"document.querySelectorAll('{inside}').length") == 0
        links = one.evaluate("[...document.querySelectorAll('.jp-OutputArea-output a')].map(a => a.protocol)")
        assert set(links) <= {"http:", "https:"}, links
        assert one.locator(".jp-OutputArea-output").count() >= len(cells)
        harmless(one, [url for url in asked if "cdnjs" not in url and "mathjax" not in url.lower()])


def test_s11_page_cannot_control_the_notebook() -> None:
    """A page may request only a snapshot, a number of ranks or the timeline over the widget's channel."""
    dice = random.Random(11)
    sent: list[str] = []

    def anything(depth: int = 0) -> object:
        leaf = [None, True, -1, 1e308, "snapshot ", "stop", "", *dice.sample(CORPUS, 2), "__class__"]
        if depth > 3 or dice.random() < 0.5:
            return dice.choice(leaf)
        if dice.random() < 0.5:
            return [anything(depth + 1) for _ in range(dice.randrange(4))]
        return {str(anything(9)): anything(depth + 1) for _ in range(dice.randrange(4))}

    resized: list[int] = []
    wishes: list[tuple[int | None, bool]] = []
    panel = Panel(lambda: {"seq": 1}, resized.append, lambda *wish: wishes.append(wish))
    panel.send_state = lambda key=None: sent.append(str(key))
    for _ in range(10_000):
        panel._answer(panel, anything(), [])
        panel.set_state({"snapshot": anything()})
    assert panel.current() == {"seq": 1}
    assert set(sent) <= {"{'snapshot'}", "set()", "None"}, "an echo at most"
    before = len(sent)
    panel._answer(panel, "snapshot", [])
    assert len(sent) == before + 1
    for wrong in (True, 0, -1, "6", 6.0, 10**9, None, [6]):
        panel._answer(panel, {"resize": wrong}, [])
    assert resized == []
    panel._answer(panel, {"resize": 6}, [])
    assert resized == [6]
    for picked, whole in (("1", True), (None, 1), ([1], False), (1.0, True), (True, True)):
        panel._answer(panel, {"timeline": picked, "whole": whole}, [])
    assert wishes == []
    panel._answer(panel, {"timeline": 1, "whole": False}, [])
    assert wishes == [(1, False)]
    panel.close()


@pytest.mark.nightly
def test_corpus_runs_if_inserted_as_markup() -> None:
    """Check that these tests can fail: as markup, the corpus runs, opens dialogs and sends requests.

    Not all of it at once: some of it leads the page astray, so that the rest need not run.
    """
    some = [text for text in CORPUS if re.match(r"[\"'>]*<(img src|details|svg onload)", text)]
    with page({"/": ("text/html", "<!doctype html><main></main>")}) as (one, asked):
        one.goto("http://hvd.test/")
        with one.expect_request(lambda request: "evil.invalid" in request.url):
            one.evaluate(
                "texts => { for (const t of texts) document.querySelector('main').insertAdjacentHTML('beforeend', t); }",
                some,
            )
        one.evaluate("alert(1); fetch('https://evil.invalid/')")
        one.wait_for_function("window.__ran >= 3", polling=50)
        assert one.evaluate("window.__called") == [["alert", "1"], ["fetch", "https://evil.invalid/"]]
        assert any("evil.invalid" in url for url in asked)
        with pytest.raises(AssertionError):
            harmless(one, asked)
