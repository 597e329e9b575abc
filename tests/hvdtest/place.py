"""A kernel with two ranks in a hostile place: umask 000, and a folder full of planted files.

Terms.
  planted    a file in the notebook's folder that has the name of something that we or Python import, or a config file;
             when run, it appends its process to a list and then loads the real module
  canary     that list
"""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from hvdtest.kernel import RUN_S, Kernel, Outcome
from hvdtest.surface import family
from zmq.utils import z85

PLANTED = """
import os as _os, sys as _sys, importlib.machinery as _m, importlib.util as _u
with open({canary!r}, "a") as _list:
    _list.write(f"{{_os.getpid()}} {name}\\n")
_spec = _m.PathFinder.find_spec({name!r}, [p for p in _sys.path if p not in ("", {folder!r})])
if _spec is not None and __name__ == {name!r}:
    _sys.modules[__name__] = _module = _u.module_from_spec(_spec)
    _spec.loader.exec_module(_module)
"""
MODULES = (
    *("sitecustomize", "usercustomize", "hvd_kernel", "torch", "numpy", "mpi4py", "ipykernel", "ipyparallel", "zmq"),
    *(
        "traitlets",
        "tornado",
        "cloudpickle",
        "psutil",
        "pynvml",
        "yaml",
        "IPython",
        "jupyter_client",
        "json",
        "logging",
    ),
)
CONFIGS = (
    *("ipython_config", "ipython_kernel_config", "ipcontroller_config", "ipengine_config", "jupyter_config"),
    *("ipcluster_config", "ipython_parallel_config", ".hvdrc", "startup", ".pythonrc"),
)
TELL_KEYS = """
import json as _json
_session = __import__('hvd_kernel.magics').magics.manager_of(get_ipython()).session
with open({path!r}, "w") as _file:
    _json.dump(_session._wire._config, _file)
del _json, _session, _file
"""
TELL_RANK = """%%hvdrun
import json as _json
from hvd_kernel.worker.shell.engine import RankEngine as _engine
_app = _engine.instance()
with open(f"{path}{{rank}}", "w") as _file:
    _json.dump([_app.connection_info_env, _app.curve_secretkey.decode()], _file)
del _json, _engine, _app, _file
"""


class PlacedKernel(Kernel):
    """A kernel that Jupyter starts in the notebook's folder, as it does, with an encrypted connection by TCP."""

    def __init__(self, home: Path, folder: Path) -> None:
        super().__init__(home, env={"HVD_SPARES": "0"})  # sockets of spares would look like those of other processes
        self.folder = folder
        self.manager.transport, self.manager.ip = "tcp", "127.0.0.1"
        self.manager.transport_encryption = "required"

    def __enter__(self) -> Self:
        self.manager.start_kernel(env=self._env, cwd=str(self.folder))
        self._connect()
        return self


@dataclass
class Place:
    """A kernel, its folder, and secrets that must never be visible."""

    kernel: PlacedKernel
    folder: Path
    home: Path
    canary: Path
    client: dict[str, Any]  # the notebook's connection to the controller
    engine: dict[str, Any]  # the ranks'
    rank_secret: str

    def family(self) -> dict[int, str]:
        return family(self.kernel.pid)

    def run(self, code: str, **how: Any) -> Outcome:
        return self.kernel.run(code, **how)

    @property
    def secrets(self) -> dict[str, bytes]:
        """Return every secret in every form in which it might appear: name -> text."""
        raw = {
            "session key": self.client["key"].encode(),
            "session key's bytes": bytes.fromhex(self.client["key"]),
            "controller's key": self.client["curve_serverkey"].encode(),
            "controller's key's bytes": z85.decode(self.client["curve_serverkey"].encode()),
            "rank's key": self.rank_secret.encode(),
            "rank's key's bytes": z85.decode(self.rank_secret.encode()),
        }
        forms = {}
        for name, value in raw.items():
            forms[name] = value
            forms[f"{name} in hex"] = value.hex().encode()
            forms[f"{name} in base64"] = base64.b64encode(value).rstrip(b"=")
            forms[f"{name} as Python writes it"] = repr(value)[2:-1].encode()
            forms[f"{name} in JSON"] = json.dumps(value.decode("latin-1"))[1:-1].encode()
        return forms

    def seen_in(self, text: bytes) -> list[str]:
        """Names of the secrets that a text shows."""
        return [name for name, secret in self.secrets.items() if secret in text]

    @contextmanager
    def at_work(self) -> Iterator[None]:
        """Keep both ranks in collectives while the block runs; every sum must be right, and both must count the same."""
        stop = self.home / "stop"
        stop.unlink(missing_ok=True)
        started = self.kernel.start(AT_WORK.format(stop=str(stop)))
        self.kernel.wait_for("execute_input")
        try:
            yield
        finally:
            stop.touch()
            outcome = self.kernel.finish_rest(started, timeout=RUN_S + time.monotonic() - started[1])
        (shown,) = outcome.shown
        label, _, count = shown.partition(" ")
        assert label == "[0-1]", shown
        assert int(count) > 0


AT_WORK = """%%hvdrun
import os, torch
rounds = 0
while True:
    ended = float(rank == 0 and os.path.exists({stop!r}))
    ended, total = hvd.allreduce(torch.tensor([ended, float(rounds)]), name="work", op=hvd.Sum).tolist()
    assert total == 2 * rounds, (total, rounds)
    rounds += 1
    if ended:
        break
rounds
"""


def text_of(path: Path) -> bytes:
    """Return the content of a file; empty if it no longer exists, as SQLite's journal."""
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return b""


def plant(folder: Path, canary: Path) -> None:
    for name in (*MODULES, *CONFIGS):
        text = PLANTED.format(canary=str(canary), name=name, folder=str(folder))
        (folder / (name if name.startswith(".") else f"{name}.py")).write_text(text)
    (folder / "helper_of_the_notebook.py").write_text("answer = 42\n")
