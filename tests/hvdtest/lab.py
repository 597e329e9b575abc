"""JupyterLab on a folder, driven in headless Chromium.

    with Lab(folder) as lab, lab.browser() as page:
        notebook = page.open("demo.ipynb")
        notebook.run_all()
        notebook.wait("document.querySelector('.hvd') !== null")
        notebook.shoot("build/demo.png")

Each Lab has its own Jupyter and IPython folders, a free port and a token, and is ended by its process id, with all it started.
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
from playwright.sync_api import Page, sync_playwright

CHROMIUM = os.environ.get("HVD_TEST_CHROMIUM", "/usr/bin/chromium")
FLAGS = [
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
]
SHUNNED_PORT = 10080  # Chromium goes to none of that number, whatever is there
START_S = 120
READY = ".jp-Notebook-ExecutionIndicator[data-status='idle']"
ROOT = Path(__file__).resolve().parents[2]


class Lab:
    """A running JupyterLab server."""

    def __init__(self, folder: Path, theme: str = "JupyterLab Light") -> None:
        self.folder = folder
        self.token = secrets.token_hex(16)
        self.port = next(port for port in iter(free_port, None) if port != SHUNNED_PORT)
        self._home = tempfile.TemporaryDirectory(prefix="hvd-lab-")
        self._log = Path(self._home.name) / "server.log"
        settings = Path(self._home.name) / "jupyter_config_dir" / "lab" / "user-settings" / "@jupyterlab"
        themes = settings / "apputils-extension" / "themes.jupyterlab-settings"
        themes.parent.mkdir(parents=True)
        themes.write_text(f'{{"theme": "{theme}"}}')
        (settings / "apputils-extension" / "notification.jupyterlab-settings").write_text(
            '{"fetchNews": "false", "checkForUpdates": false}'
        )

    def __enter__(self) -> Self:
        home = Path(self._home.name)
        names = ("IPYTHONDIR", "JUPYTER_CONFIG_DIR", "JUPYTER_RUNTIME_DIR", "JUPYTERLAB_WORKSPACES_DIR")
        own = {name: str(home / name.lower()) for name in names}
        settings = str(home / "jupyter_config_dir" / "lab" / "user-settings")
        paths = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
        environment = {**os.environ, **own, "JUPYTERLAB_SETTINGS_DIR": settings, "PYTHONPATH": paths}
        command = [
            *(sys.executable, "-P", "-m", "jupyter", "lab", "--allow-root", "--no-browser", "--ServerApp.ip=127.0.0.1"),
            *(f"--ServerApp.port={self.port}", "--ServerApp.port_retries=0", f"--IdentityProvider.token={self.token}"),
            f"--ServerApp.root_dir={self.folder}",
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
        """Those of the family that run this module; one that ends while it is looked at is none."""
        found = []
        for each in self.family():
            with contextlib.suppress(psutil.NoSuchProcess):
                if module in " ".join(each.cmdline()):
                    found.append(each)
        return found

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
        with blank_page(viewport={"width": width, "height": height}) as page:
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
        request = urllib.request.Request(f"{self.url}/{what}", headers={"Authorization": f"token {self.token}"})
        while time.monotonic() < deadline:
            if self._server.poll() is not None:
                raise AssertionError(f"JupyterLab ended at once:\n{self.log()}")
            with contextlib.suppress(OSError, HTTPException), urllib.request.urlopen(request, timeout=10) as answer:
                if enough(json.load(answer)):
                    return
            time.sleep(0.1)  # the server offers no event to wait for
        raise AssertionError(f"JupyterLab was not ready within {START_S} s ({what}):\n{self.log()}")


def _is_idle(kernel: dict[str, Any]) -> bool:
    return bool(kernel["execution_state"] == "idle")


@contextlib.contextmanager
def blank_page(**how: Any) -> Iterator[Page]:
    """A page of a headless Chromium, which is patient: of itself it would give up after half a minute."""
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS, timeout=1000 * START_S)
        try:
            page = chromium.new_page(**how)
            page.set_default_timeout(1000 * START_S)
            page.set_default_navigation_timeout(1000 * START_S)
            yield page
        finally:
            chromium.close()


def panel(cell: int) -> str:
    """An expression: the dashboard of that cell. A cell before it has one too where it took its time."""
    titled = f"each.querySelector('h3').textContent === 'cell {cell}'"
    return f"[...document.querySelectorAll('.hvd')].find(each => {titled})"


class Browser:
    """One page. ``errors`` are the page's own, ``strangers`` the requests that left this machine's server."""

    def __init__(self, lab: Lab, page: Page) -> None:
        self.lab = lab
        self.page = page
        self.errors: list[str] = []
        self.strangers: list[str] = []
        self.received = 0  # bytes from kernels
        page.on("pageerror", lambda error: self.errors.append(str(error)))
        page.on("request", lambda request: self._look(request.url))
        page.on("websocket", lambda socket: socket.on("framereceived", self._count))

    def open(self, name: str, *, busy: bool = False) -> Notebook:
        """Open a notebook of the folder, which names its kernel, and return when that is ready, unless it is ``busy``.

        Lab shows a kernel as idle before it has one, and asks which to take when a cell is run then.
        """
        self.page.goto(f"{self.lab.url}/lab/tree/{name}?token={self.lab.token}&reset")
        self.page.wait_for_selector(".jp-Notebook .jp-Cell", timeout=1000 * START_S)
        if busy:
            return Notebook(self)
        self.lab.await_kernel()
        self.page.wait_for_selector(READY, state="attached")
        return Notebook(self)

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

    def run_all(self) -> None:
        self.menu("Run", "Run All Cells")

    def run(self, cell: int) -> None:
        self.page.click(f".jp-Notebook .jp-Cell >> nth={cell}")
        self.page.keyboard.press("Shift+Enter")

    def save(self) -> None:
        self.page.keyboard.press("Control+s")

    def menu(self, bar: str, entry: str) -> None:
        self.page.click(f".lm-MenuBar-itemLabel:text-is('{bar}')")
        self.page.click(f".lm-Menu-itemLabel:text-is('{entry}')")

    def wait(self, condition: str, timeout_s: float = START_S) -> object:
        """Wait until a JavaScript expression is truthy; its value."""
        return self.page.wait_for_function(condition, timeout=1000 * timeout_s).json_value()

    def text(self, selector: str) -> str:
        return (self.page.text_content(selector) or "").strip()

    def shoot(self, path: Path | str, selector: str | None = None) -> None:
        """Save a picture of the page, or of the first element that matches."""
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        if selector is None:
            self.page.screenshot(path=str(path))
        else:
            self.page.locator(selector).first.screenshot(path=str(path))
