"""Node.js, which runs the page's modules without a browser: tests that need it are skipped where there is none."""

from __future__ import annotations

import json
import shutil
import subprocess
from typing import Any

import pytest
from hvdtest.offenders import ROOT

MODULES = ROOT / "widgets" / "js"
needs_node = pytest.mark.skipif(shutil.which("node") is None, reason="no Node.js (Debian: apt-get install nodejs)")


def node(*arguments: str, data: str = "") -> str:
    """Return the output of Node.js; a failure has all of it."""
    done = subprocess.run(
        ["node", *arguments], input=data, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def evaluate(body: str, data: object = None, **imports: str) -> Any:
    """What ``body`` returns for ``data``, each name in it imported from a module: ``evaluate("return h(data)", 1, h="dom")``."""
    lines = [f"import {{ {each} }} from '{(MODULES / module).as_uri()}.js';" for each, module in imports.items()]
    lines.append("import { readFileSync } from 'node:fs';")
    lines.append(f"const answer = ((data) => {{ {body} }})(JSON.parse(readFileSync(0, 'utf8')));")
    lines.append("process.stdout.write(JSON.stringify(answer));")
    return json.loads(node("--input-type=module", "--eval", "\n".join(lines), data=json.dumps(data, allow_nan=False)))
