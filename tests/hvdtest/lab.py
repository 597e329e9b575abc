"""JupyterLab on a folder, driven in headless Chromium.

    with chromium() as browsers, Lab(folder, browsers) as lab, lab.browser() as page:
        notebook = page.open(folder / "demo.ipynb")
        notebook.run_all()
        notebook.wait("document.querySelector('.hvd') !== null")
        notebook.shoot("build/demo.png")
        assert lab.end_kernels() == []

Each Lab has its own folders of Jupyter, IPython and temporary files, a free port and a token, and is ended by its process id, with
all it started. tests/browser/conftest.py has one of each for all tests.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from http.client import HTTPException
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import psutil
from hvdtest.launch import free_port
from playwright.sync_api import Browser as Chromium
from playwright.sync_api import Page, sync_playwright
from playwright.sync_api import TimeoutError as PlaywrightTimeout

CHROMIUM = os.environ.get("HVD_TEST_CHROMIUM", "/usr/bin/chromium")
FLAGS = [
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
]
SHUNNED_PORT = 10080  # Chromium goes to none of that number, whatever is there
START_S = 120
READY = ".jp-Notebook-ExecutionIndicator[data-status='idle']"
# The page knows its kernel's state by messages, and one that comes before it listens is lost: it requests the state again from time to time.
KNOWS_ITS_KERNEL = """() => {
    const kernel = window.jupyterapp?.shell.currentWidget?.sessionContext?.session?.kernel;
    if (kernel?.connectionStatus !== 'connected') return false;
    window.looks = (window.looks ?? 0) + 1;
    if (window.looks % 50 === 0) kernel.requestKernelInfo().catch(() => {});
    return kernel.status === 'idle';
}"""
LOOK_EVERY_MS = 100
ROOT = Path(__file__).resolve().parents[2]
OVERDUE = ROOT / "build" / "browser_overdue.png"
KERNEL = {"name": "hvd_kernel", "display_name": "Python 3 (hvd)", "language": "python"}

TRAIN = """import os, torch
model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 10))
hvd.broadcast_parameters(model.state_dict(), root_rank=0)
optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.05), named_parameters=model.named_parameters())
torch.manual_seed(rank)
batch, target = torch.randn(32, 64), torch.randint(0, 10, (32,))
while hvd.allreduce(torch.tensor(float(os.path.exists("SEEN"))), name="seen by", op=hvd.Sum) == 0:
    optimizer.zero_grad()
    loss = torch.nn.functional.cross_entropy(model(batch), target)
    loss.backward()
    optimizer.step()
    hvd.log(loss=loss)
print("trained")"""
"""A training that ends when a file SEEN exists: the test has seen its panel."""


def write_notebook(file: Path, *cells: str) -> Path:
    """Write a notebook of these cells; return its file."""
    empty: dict[str, Any] = {"execution_count": None, "metadata": {}, "outputs": []}
    made = [{"cell_type": "code", "id": f"cell-{i}", "source": cell, **empty} for i, cell in enumerate(cells)]
    book = {"nbformat": 4, "nbformat_minor": 5, "metadata": {"kernelspec": KERNEL}, "cells": made}
    file.write_text(json.dumps(book))
    return file


class Lab:
    """A running JupyterLab server."""

    def __init__(self, folder: Path, chromium: Chromium) -> None:
        self.folder, self._chromium = folder, chromium
        self.token = secrets.token_hex(16)
        self.port = next(port for port in iter(free_port, None) if port != SHUNNED_PORT)
        self._home = tempfile.TemporaryDirectory(prefix="hvd-lab-")
        self._log = Path(self._home.name) / "server.log"
        self.scratch = Path(self._home.name) / "tmp"  # where its kernels have their temporary files
        self.scratch.mkdir(mode=0o700)
        settings = Path(self._home.name) / "jupyter_config_dir" / "lab" / "user-settings" / "@jupyterlab"
        notifications = settings / "apputils-extension" / "notification.jupyterlab-settings"
        notifications.parent.mkdir(parents=True)
        notifications.write_text('{"fetchNews": "false", "checkForUpdates": false}')

    def __enter__(self) -> Self:
        home = Path(self._home.name)
        names = ("IPYTHONDIR", "JUPYTER_CONFIG_DIR", "JUPYTER_RUNTIME_DIR", "JUPYTERLAB_WORKSPACES_DIR")
        own = {name: str(home / name.lower()) for name in names}
        settings = str(home / "jupyter_config_dir" / "lab" / "user-settings")
        paths = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
        more = {"JUPYTERLAB_SETTINGS_DIR": settings, "PYTHONPATH": paths, "TMPDIR": str(self.scratch)}
        environment = {**os.environ, **own, **more}
        command = [
            *(sys.executable, "-P", "-m", "jupyter", "lab", "--allow-root", "--no-browser", "--ServerApp.ip=127.0.0.1"),
            *(f"--ServerApp.port={self.port}", "--ServerApp.port_retries=0", f"--IdentityProvider.token={self.token}"),
            *(f"--ServerApp.root_dir={self.folder}", "--LabApp.expose_app_in_browser=True"),
        ]
        with self._log.open("wb") as log:
            self._server = subprocess.Popen(
                command, cwd=home, env=environment, stdout=log, stderr=log, start_new_session=True
            )
        try:
            self._wait()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def log(self) -> str:
        return self._log.read_text(errors="replace")

    def family(self) -> list[psutil.Process]:
        """The server and everything that it started, kernels and their ranks included."""
        server = psutil.Process(self._server.pid)
        return [server, *server.children(recursive=True)]

    def running(self, module: str) -> list[psutil.Process]:
        """Return the processes of the family that run this module; processes that exit meanwhile are left out."""
        found = []
        for each in self.family():
            with contextlib.suppress(psutil.NoSuchProcess):
                if module in " ".join(each.cmdline()):
                    found.append(each)
        return found

    def end_kernels(self) -> list[psutil.Process]:
        """Shut down the kernel of every notebook; return remaining processes of kernels and ranks."""
        started = self.family()[1:]
        for session in self._ask("api/sessions"):
            self._ask(f"api/sessions/{session['id']}", "DELETE")
        left: list[psutil.Process] = psutil.wait_procs(started, timeout=60)[1]
        return left

    def close(self) -> None:
        """End the server gently, then everything that is left of it."""
        family = self.family() if self._server.poll() is None else []
        if family:
            self._server.send_signal(signal.SIGTERM)
        _, stubborn = psutil.wait_procs(family, timeout=30)
        for process in stubborn:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(stubborn, timeout=60)  # until it is gone it may write where we clean up
        self._server.wait(timeout=60)
        self._home.cleanup()

    @contextlib.contextmanager
    def browser(self, width: int = 1180, height: int = 1000) -> Iterator[Browser]:
        with page_of(self._chromium, viewport={"width": width, "height": height}) as page:
            yield Browser(self, page)

    def await_kernel(self) -> None:
        """Return when the page is connected to a kernel that has nothing to do."""
        self._await("api/kernels", lambda kernels: any(k["connections"] and _is_idle(k) for k in kernels))

    def await_end(self) -> None:
        """Return when the kernels have nothing to do and no page is open."""
        self._await("api/kernels", lambda kernels: all(not k["connections"] and _is_idle(k) for k in kernels))

    def _wait(self) -> None:
        self._await("api/status", lambda _status: True)

    def _await(self, what: str, enough: Callable[[Any], bool]) -> None:
        deadline = time.monotonic() + START_S
        while time.monotonic() < deadline:
            if self._server.poll() is not None:
                raise AssertionError(f"JupyterLab ended at once:\n{self.log()}")
            with contextlib.suppress(OSError, HTTPException):
                if enough(self._ask(what)):
                    return
            time.sleep(0.1)  # the server offers no event to wait for
        raise AssertionError(f"JupyterLab was not ready within {START_S} s ({what}):\n{self.log()}")

    def _ask(self, what: str, method: str = "GET") -> Any:
        headers = {"Authorization": f"token {self.token}"}
        request = urllib.request.Request(f"{self.url}/{what}", headers=headers, method=method)
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.loads(answer.read() or b"null")


def _is_idle(kernel: dict[str, Any]) -> bool:
    return bool(kernel["execution_state"] == "idle")


@contextlib.contextmanager
def chromium() -> Iterator[Chromium]:
    """A headless Chromium. While it runs, this thread counts as one with a running event loop."""
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS, timeout=1000 * START_S)
        try:
            yield started
        finally:
            started.close()


@contextlib.contextmanager
def page_of(chromium: Chromium, **how: Any) -> Iterator[Page]:
    """Open a page without shared state, with long timeouts instead of half a minute."""
    context = chromium.new_context(**how)
    try:
        context.set_default_timeout(1000 * START_S)
        context.set_default_navigation_timeout(1000 * START_S)
        yield context.new_page()
    finally:
        context.close()


@contextlib.contextmanager
def blank_page(**how: Any) -> Iterator[Page]:
    """A page of a Chromium of its own."""
    with chromium() as started, page_of(started, **how) as page:
        yield page


def panel(cell: int) -> str:
    """Return an expression for the dashboard of that cell. An earlier cell has one too if it was slow."""
    titled = f"each.querySelector('h3').textContent === 'cell {cell}'"
    return f"[...document.querySelectorAll('.hvd')].find(each => {titled})"


class Browser:
    """One page. ``errors`` are the page's own, ``strangers`` requests to other servers."""

    def __init__(self, lab: Lab, page: Page) -> None:
        self.lab = lab
        self.page = page
        self.errors: list[str] = []
        self.strangers: list[str] = []
        self.received = 0  # bytes from kernels
        page.on("pageerror", lambda error: self.errors.append(str(error)))
        page.on("request", lambda request: self._look(request.url))
        page.on("websocket", lambda socket: socket.on("framereceived", self._count))

    def open(self, file: Path, *, busy: bool = False) -> Notebook:
        """Open a notebook of the folder, which names its kernel, and return when that is ready, unless it is ``busy``."""
        name = file.relative_to(self.lab.folder)
        self.page.goto(f"{self.lab.url}/lab/tree/{name}?token={self.lab.token}&reset")
        self.page.wait_for_selector(".jp-Notebook .jp-Cell", timeout=1000 * START_S)
        notebook = Notebook(self)
        if not busy:
            notebook.await_kernel()
        return notebook

    def _look(self, url: str) -> None:
        if not url.startswith((self.lab.url, "blob:", "data:")):
            self.strangers.append(url)

    def _count(self, frame: str | bytes) -> None:
        self.received += len(frame)


class Notebook:
    """The notebook that is open in a browser."""

    def __init__(self, browser: Browser) -> None:
        self.browser = browser
        self.page = browser.page

    def await_kernel(self) -> None:
        """Wait until the page has an idle kernel and shows it.

        Lab shows a kernel as idle before it has one; a cell run then opens a dialog.
        """
        self.browser.lab.await_kernel()
        self.page.wait_for_function(KNOWS_ITS_KERNEL, polling=LOOK_EVERY_MS)
        self.page.wait_for_selector(READY, state="attached")

    def run_all(self) -> None:
        self.menu("Run", "Run All Cells")

    def run(self, cell: int) -> None:
        self.page.click(f".jp-Notebook .jp-Cell >> nth={cell}")
        self.page.keyboard.press("Shift+Enter")

    def save(self) -> None:
        self.page.keyboard.press("Control+s")

    def reload(self) -> None:
        """Reload the page once the notebook is saved; return when it has its idle kernel.

        Lab restores widgets after that, and does not request missed messages again.
        """
        self.page.wait_for_selector(".jp-mod-dirty", state="detached")
        self.page.reload()
        self.page.wait_for_selector(".jp-Notebook .jp-Cell")
        self.await_kernel()

    def menu(self, bar: str, entry: str) -> None:
        self.page.click(f".lm-MenuBar-itemLabel:text-is('{bar}')")
        self.page.click(f".lm-Menu-itemLabel:text-is('{entry}')")

    def wait(self, condition: str, timeout_s: float = START_S) -> object:
        """Wait until a JavaScript expression is truthy and return its value; a timeout reports the content of the page."""
        try:
            return self.page.wait_for_function(condition, timeout=1000 * timeout_s).json_value()
        except PlaywrightTimeout:
            self.shoot(OVERDUE)
            shown = self.page.evaluate("document.body.innerText")
            errors = "\n".join(self.browser.errors) or "none"
            said = f"{condition} is not so after {timeout_s} s. Errors of the page: {errors}. It shows ({OVERDUE}):\n{shown}"
        raise AssertionError(said)

    def text(self, selector: str) -> str:
        return (self.page.text_content(selector) or "").strip()

    def shoot(self, path: Path | str, selector: str | None = None) -> None:
        """Save a picture of the page, or of the first element that matches."""
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        if selector is None:
            self.page.screenshot(path=str(path))
        else:
            self.page.locator(selector).first.screenshot(path=str(path))
