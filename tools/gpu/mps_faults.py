"""MPS clients and a fatal fault: the effect on the others when one fails on the device, or is killed there. Markdown.

Each case has its own private daemon, a bystander that computes all the time, and a client that fails; then a fresh client.

    python -P tools/gpu/mps_faults.py
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time

CLIENT = """
import sys, time, torch
x = torch.ones(1 << 20, device="cuda")
torch.cuda.synchronize()
print("ready", flush=True)
"""
BYSTANDER = (
    CLIENT
    + """
longest = 0.0
for _ in range(int(sys.argv[1])):
    began = time.monotonic()
    assert (x * 2).sum().item() == 2 << 20
    longest = max(longest, time.monotonic() - began)
    time.sleep(0.01)
print(f"well, nothing took longer than {longest:.2f} s")
"""
)
ASLEEP = "print('asleep', flush=True)\n"
ILLEGAL = """
import cupy
cupy.RawKernel('extern "C" __global__ void put(int* where) { *where = 1; }', 'put')((1,), (1,), (cupy.uint64(16),))
torch.cuda.synchronize()
"""
CASES = {
    "an assertion on the device": "x[torch.tensor([1 << 30], device='cuda')]\ntorch.cuda.synchronize()",
    "an illegal address": ILLEGAL,
    "SIGKILL in the middle of a kernel": f"torch.cuda._sleep(1 << 36)\n{ASLEEP}torch.cuda.synchronize()",
    "SIGKILL between kernels": f"{ASLEEP}time.sleep(60)",
}
COMPUTES = 400  # times that the bystander computes, 10 ms apart
GIVEN_S = 40.0


def _client(code: str, env: dict[str, str], *args: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-P", "-c", code, *args]
    return subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def _ready(client: subprocess.Popen[str]) -> bool:
    assert client.stdout is not None
    return any(line.strip() == "ready" for line in client.stdout)


def _wait_end(client: subprocess.Popen[str]) -> str:
    """Return how it ended and its first line that tells why, or that it never did."""
    assert client.stdout is not None
    late = threading.Timer(GIVEN_S, client.kill)
    late.start()
    output = client.stdout.read()  # not communicate(), which misses what was read ahead with the lines before
    client.wait()
    if late.finished.is_set():
        return f"hung for {GIVEN_S:.0f} s; killed"
    late.cancel()
    lines = (
        [line for line in output.splitlines() if "rror" in line or "well" in line] or output.splitlines() or ["nothing"]
    )
    return f"status {client.returncode}: {lines[0][:110]}"


def case(name: str, code: str) -> str:
    """Return its row."""
    from hvd_kernel.processes.mps.daemon import PrivateDaemon

    outputs: list[str] = []
    daemon = PrivateDaemon(outputs.append)
    try:
        env = daemon.variables(2, dict(os.environ))
        if not env:
            return f"| {name} | no daemon: {' '.join(outputs)} | | |"
        bystander = _client(BYSTANDER, {**os.environ, **env}, str(COMPUTES))
        is_ready = _ready(bystander)
        faulty = _client(CLIENT + code, {**os.environ, **env})
        if not (is_ready and _ready(faulty)):
            return f"| {name} | not ready: {_wait_end(faulty)} | {_wait_end(bystander)} | |"
        if name.startswith("SIGKILL"):
            assert faulty.stdout is not None
            faulty.stdout.readline()
            time.sleep(0.5)  # until it is in the kernel, which sends no event
            faulty.kill()
        faulty_end = _wait_end(faulty)
        bystander_end = _wait_end(bystander)
        began = time.monotonic()
        env = daemon.variables(2, dict(os.environ))
        fresh = _client(BYSTANDER, {**os.environ, **env}, "2")
        its = (
            f"{_wait_end(fresh)}, after {time.monotonic() - began:.1f} s"
            if _ready(fresh)
            else f"not ready: {_wait_end(fresh)}"
        )
    finally:
        daemon.close()
    return f"| {name} | {faulty_end} | {bystander_end} | {its} {' '.join(outputs)} |"


def main() -> None:
    """Print a row for each case."""
    print(
        "\nClients of one MPS daemon:\n\n| one client | it | a bystander | a client after that |\n| --- | --- | --- | --- |",
        flush=True,
    )
    for name, code in CASES.items():
        print(case(name, code).replace("\n", " "), flush=True)


if __name__ == "__main__":
    main()
