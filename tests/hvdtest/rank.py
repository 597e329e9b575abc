"""Process of a RankPool: reads "call this function of that file" and writes its result, each as one line of JSON.

On request it writes the wait of its core and the stack of every thread to stderr.
"""

from __future__ import annotations

import faulthandler
import importlib.util
import json
import os
import socket
import sys
import threading
import traceback
from types import ModuleType
from typing import Any

ALONE = 86  # the process that started it has exited
_modules: dict[str, ModuleType] = {}


def main() -> None:
    faulthandler.enable()
    answers, watch = os.fdopen(int(sys.argv[1]), "w"), socket.socket(fileno=int(sys.argv[2]))
    threading.Thread(target=_tell_where, args=(watch,), name="watch", daemon=True).start()
    for line in sys.stdin:
        answers.write(json.dumps(_answer(json.loads(line))) + "\n")
        answers.flush()


def _answer(call: dict[str, Any]) -> dict[str, Any]:
    try:
        function = getattr(load(call["file"]), call["function"])
        return {"result": function(*call["args"])}
    except BaseException as error:
        answer = {"error": traceback.format_exc()}
        release(f"{call['function']}: {type(error).__name__}: {error}")
        return answer


def load(file: str) -> ModuleType:
    if file not in _modules:
        spec = importlib.util.spec_from_file_location(f"checks_{len(_modules)}", file)
        assert spec is not None
        assert spec.loader is not None
        _modules[file] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(_modules[file])
    return _modules[file]


def release(reason: str) -> None:
    from hvd_kernel.core import session

    if session.is_initialized():
        session.engine().abort(reason)


def _tell_where(watch: socket.socket) -> None:
    while watch.recv(1):
        sys.stderr.write(f"waits for {_waits_for()}\n")
        sys.stderr.flush()
        faulthandler.dump_traceback(all_threads=True)
        watch.send(b".")
    os._exit(ALONE)


def _waits_for() -> str:
    from hvd_kernel.core import session

    if not session.is_initialized():
        return "nothing: hvd is not initialised"
    waits = [
        f"{one['name']} ({one['op']}, missing {one['missing'] or 'unknown'})" for one in session.engine().pending()
    ]
    return ", ".join(waits) or "no operation"


if __name__ == "__main__":
    main()
