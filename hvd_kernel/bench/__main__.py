"""``python -m hvd_kernel.bench -np 2 --sizes 4K,1M,64M``: measure allreduce."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Sequence
from operator import itemgetter
from pathlib import Path
from typing import Any

from hvd_kernel.bench import other_mpis
from hvd_kernel.bench.bandwidth_picture import picture
from hvd_kernel.bench.report import OURS, Result, nbytes_of, table
from hvd_kernel.bench.start import run_ranks, variables
from hvd_kernel.errors import ClusterError
from hvd_kernel.processes.lifetime import die_with_parent
from hvd_kernel.settings.lists import entries

_DESCRIPTION = "Measure allreduce beside the peers that can be imported here."
DTYPES = ("float32", "float64", "float16", "bfloat16", "int32", "int64", "uint8")
OPS = ("sum", "min", "max", "product")


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print, and return the exit status: 1 when a value was wrong or a rank failed."""
    asked = _parser().parse_args(arguments)
    if asked.tied:
        die_with_parent()
    try:
        found = measure(asked)
    except ClusterError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    results = [Result(**one) for one in found]
    text = f"allreduce of {asked.dtype}, {asked.op}, {asked.np} ranks, {asked.rounds} rounds\n{table(results)}"
    if asked.json:
        figures = {"np": asked.np, "dtype": asked.dtype, "op": asked.op, "results": found}
        sys.stdout.write(json.dumps(figures | {"text": text, "svg": picture(results, asked.np)}) + "\n")
    else:
        sys.stdout.write(text)
    return 0 if all(one["right"] for one in found) else 1


def measure(asked: argparse.Namespace) -> list[dict[str, Any]]:
    """Run the ranks and return what rank 0 wrote."""
    with tempfile.TemporaryDirectory(prefix="hvd-bench-") as folder:
        file = Path(folder) / "results.json"
        plan = {
            "sizes": asked.sizes,
            "dtype": asked.dtype,
            "op": asked.op,
            "shared": asked.shared,
            "limit": asked.limit,
            "beside_mpi": False,
            "rounds": asked.rounds,
            "file": str(file),
        }
        run_ranks(asked.np, [json.dumps(plan)], asked.timeout)
        found: list[dict[str, Any]] = json.loads(file.read_text())
        for mpi in other_mpis.installed():
            try:
                other_mpis.run_ranks(
                    mpi, asked.np, [json.dumps(plan | {"beside_mpi": True})], variables(), asked.timeout
                )
            except ClusterError as error:
                sys.stderr.write(f"{mpi.name} {mpi.version} is not measured: {error}\n")
                continue
            found += [one for one in json.loads(file.read_text()) if one["contender"] != OURS]
        return sorted(found, key=itemgetter("nbytes"))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m hvd_kernel.bench", description=_DESCRIPTION)
    parser.add_argument("-np", type=_positive, default=2, help="ranks (default: 2)")
    parser.add_argument(
        "--sizes", type=_sizes, default="4K,64K,1M,16M,64M", help="bytes, with commas (default: %(default)s)"
    )
    parser.add_argument("--dtype", choices=DTYPES, default="float32")
    parser.add_argument("--op", choices=OPS, default="sum")
    parser.add_argument("--shared", action="store_true", help="also buffers in memory that the ranks share")
    parser.add_argument("--limit", action="store_true", help="also a copy of as many bytes, which no allreduce beats")
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
