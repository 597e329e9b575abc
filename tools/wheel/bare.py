"""Run by the wheel check in a venv that has the wheel and its plain dependencies: no torch, no JupyterLab."""

import importlib.util
import json
import subprocess
import sys

assert importlib.util.find_spec("torch") is None, "the bare venv has torch: the check is worth nothing"
assert importlib.util.find_spec("jupyterlab") is None, "the bare venv has JupyterLab: the base install grew"

import numpy as np

import hvd_kernel
from hvd_kernel import _native, _session, ops

_session.init()
x = np.arange(5, dtype=np.float32)
y = ops.allreduce(x, name="x", op=ops.Sum)
assert (np.asarray(y) == x).all()
_session.shutdown()
assert _native.__version__ == hvd_kernel.__version__

specs = json.loads(
    subprocess.run(
        [sys.executable, "-m", "jupyter_client.kernelspecapp", "list", "--json"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
)["kernelspecs"]
assert specs["hvd_kernel"]["spec"]["display_name"] == "Python 3 (hvd)", specs
sys.stdout.write(f"wheel: hvd_kernel {hvd_kernel.__version__} imports, reduces and has its kernelspec without torch\n")
