"""``python -m hvd_kernel.bench -np 2 --sizes 4K,1M,64M``: allreduce compared with other installed implementations.

With mpi4py, the environment's mpiexec starts the ranks, so that MPI can be measured; without it, hvdrun's launcher.
"""

from __future__ import annotations

import argparse
import importlib.util
import io
import json
import socket
import sys
import tempfile
from collections.abc import Sequence
from operator import itemgetter
from pathlib import Path
from typing import Any

from hvd_kernel.bench import other_mpis
from hvd_kernel.bench.report import OURS, Result, nbytes_of, picture, table
from hvd_kernel.errors import ClusterError
from hvd_kernel.launch.job_run import Job, launch
from hvd_kernel.processes.lifetime import die_with_parent
from hvd_kernel.settings.lists import entries

_MCA = ("--mca", "mpi_yield_when_idle", "1")
_TAIL = 4000


def run_ranks(np: int, arguments: Sequence[str], timeout_s: float) -> None:
    """Run ``python -m hvd_kernel.bench.rank`` on np ranks.

    Raises
    ------
    ClusterError
        A rank failed, or the ranks did not finish in time; the message contains their output.
    """
    command = [sys.executable, "-P", "-m", "hvd_kernel.bench.rank", *arguments]
    mpi = importlib.util.find_spec("mpi4py") is not None and (Path(sys.prefix) / "bin" / "mpiexec").exists()
    job = Job(command, np, env=variables(), timeout_s=timeout_s, use_mpi=mpi, mpi_args=_MCA if mpi else ())
    output = io.StringIO()
    outcome = launch(job, stdout=output, stderr=output)
    if outcome.status:
        raise ClusterError(f"a rank ended with status {outcome.status}:\n{output.getvalue()[-_TAIL:]}")


def variables() -> dict[str, str]:
    """Return variables for one thread per rank, and for the rendezvous of ours and torch: an MPI launcher sets none."""
    our_port, torch_port = _free_ports(2)
    return {
        "HOROVOD_CONTROLLER_ADDR": "127.0.0.1",
        "HOROVOD_CONTROLLER_PORT": str(our_port),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(torch_port),
        "OMP_NUM_THREADS": "1",
    }


def _free_ports(count: int) -> list[int]:
    probes = [socket.socket() for _ in range(count)]
    try:
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [int(probe.getsockname()[1]) for probe in probes]
    finally:
        for probe in probes:
            probe.close()


_DESCRIPTION = "Measure allreduce beside the peers that can be imported here."
DTYPES = ("float32", "float64", "float16", "bfloat16", "int32", "int64", "uint8")
OPS = ("sum", "min", "max", "product")


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print; return the exit status, 1 if a value was wrong or a rank failed."""
    options = _parser().parse_args(arguments)
    if options.tied:
        die_with_parent()
    try:
        measured = measure(options)
    except ClusterError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    results = [Result(**row) for row in measured]
    text = f"allreduce of {options.dtype}, {options.op}, {options.np} ranks, {options.rounds} rounds\n{table(results)}"
    if options.json:
        figures = {"np": options.np, "dtype": options.dtype, "op": options.op, "results": measured}
        sys.stdout.write(json.dumps(figures | {"text": text, "svg": picture(results, options.np)}) + "\n")
    else:
        sys.stdout.write(text)
    return 0 if all(row["right"] for row in measured) else 1


def measure(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Run the ranks and return the results, which rank 0 writes."""
    with tempfile.TemporaryDirectory(prefix="hvd-bench-") as folder:
        file = Path(folder) / "results.json"
        plan = {
            "sizes": options.sizes,
            "dtype": options.dtype,
            "op": options.op,
            "shared": options.shared,
            "limit": options.limit,
            "beside_mpi": False,
            "rounds": options.rounds,
            "file": str(file),
        }
        run_ranks(options.np, [json.dumps(plan)], options.timeout)
        measured: list[dict[str, Any]] = json.loads(file.read_text())
        for mpi in other_mpis.installed():
            try:
                other_mpis.run_ranks(
                    mpi, options.np, [json.dumps(plan | {"beside_mpi": True})], variables(), options.timeout
                )
            except ClusterError as error:
                sys.stderr.write(f"{mpi.name} {mpi.version} is not measured: {error}\n")
                continue
            measured += [row for row in json.loads(file.read_text()) if row["contender"] != OURS]
        return sorted(measured, key=itemgetter("nbytes"))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m hvd_kernel.bench", description=_DESCRIPTION)
    parser.add_argument("-np", type=_positive, default=2, help="ranks (default: 2)")
    parser.add_argument(
        "--sizes", type=_sizes, default="4K,64K,1M,16M,64M", help="bytes, with commas (default: %(default)s)"
    )
    parser.add_argument("--dtype", choices=DTYPES, default="float32")
    parser.add_argument("--op", choices=OPS, default="sum")
    parser.add_argument("--shared", action="store_true", help="also buffers in memory that the ranks share")
    parser.add_argument(
        "--limit", action="store_true", help="also a copy of the same size, the lower bound of any allreduce"
    )
    parser.add_argument("--rounds", type=_positive, default=7, help="samples of each contender (default: 7)")
    parser.add_argument("--timeout", type=float, default=600.0, help="seconds for everything (default: 600)")
    parser.add_argument("--json", action="store_true", help="print JSON, with the table and a picture")
    parser.add_argument("--tied", action="store_true", help="end with the process that started this")
    return parser


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number above 0")
    return int(text)


def _sizes(text: str) -> list[int]:
    try:
        return [nbytes_of(part) for part in entries(text) or [text]]
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


if __name__ == "__main__":
    sys.exit(main())
