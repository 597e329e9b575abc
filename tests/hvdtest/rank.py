"""What runs in each process of a RankPool: takes "call this function of that file", gives back its result, one line of JSON each.

A call that takes too long ends the process, after it has said on stderr what the core waits for and where every thread is.
"""

from __future__ import annotations

import faulthandler
import importlib.util
import json
import os
import sys
import threading
import traceback
from types import ModuleType
from typing import Any

OVERDUE = 86
_modules: dict[str, ModuleType] = {}


def main() -> None:
    answers = os.fdopen(int(sys.argv[1]), "w")
    for line in sys.stdin:
        call = json.loads(line)
        alarm = threading.Timer(call["timeout"], _overdue, (call["function"],))
        alarm.daemon = True
        alarm.start()
        answer = _answer(call)
        alarm.cancel()
        answers.write(json.dumps(answer) + "\n")
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
    from hvd_kernel import _session

    if _session.is_initialized():
        _session.engine().abort(reason)


def _overdue(function: str) -> None:
    from hvd_kernel import _session

    waits = _session.engine().pending() if _session.is_initialized() else "not initialised"
    sys.stderr.write(f"{function} is overdue; the core waits for: {waits}\n")
    faulthandler.dump_traceback(all_threads=True)
    os._exit(OVERDUE)


if __name__ == "__main__":
    main()
