"""Random faults in a row, by time or by number: python tools/soak.py --faults 100 --ranks 4 --seed 7

With --elastic the faults are those of an elastic job of hvdrun: deaths, stops, cuts, ranks and hosts that leave and come.

Prints one line per fault and a summary as JSON; a fault that was not survived ends it with the sentence and the seed,
and the sentences so far are in --replay FILE, which --from FILE plays again.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from hvdtest.chaos import Chaos, expected
from hvdtest.elastic_soak import Soak
from hvdtest.kernel import Kernel
from hvdtest.sentences import Fault, drawn, parse

STEPS = 5  # per fault
KINDS = [
    ("kill", 0.40),
    ("stop", 0.15),
    ("segfault", 0.10),
    ("raise", 0.10),
    ("interrupt", 0.10),
    ("exhaust", 0.05),
    ("exit", 0.05),
    ("flood", 0.05),
]


def faults(options: argparse.Namespace) -> Iterator[Fault]:
    """Yield the faults of a file, or drawn ones until the number or the time is reached."""
    if options.replay_from:
        yield from map(parse, Path(options.replay_from).read_text().splitlines())
        return
    chance = random.Random(options.seed)
    end = time.monotonic() + 60 * options.minutes
    number = 0
    while (number < options.faults or not options.faults) and time.monotonic() < end:
        yield drawn(chance, options.ranks, number * STEPS + chance.randrange(1, STEPS + 1), KINDS)
        number += 1


def survive(chaos: Chaos, fault: Fault, until: int) -> float:
    """Inject a fault; check the error, the ranks and the lost steps; return the seconds until the ranks are usable."""
    lap = chaos.lap(until, [fault])
    assert lap.ename == expected(fault), lap.outcome.error
    if lap.ename:
        assert chaos.step() >= fault.step - 1, "more than a step was lost"
        chaos.lap(until)
    assert chaos.step() == until
    return lap.usable_after_s


def main() -> None:
    """Run, and compare the end with a training without faults."""
    options = arguments()
    say = sys.stdout.write
    if options.elastic:
        with tempfile.TemporaryDirectory() as folder:
            soak = Soak(Path(folder), options.seed, spares=options.spares, say=lambda line: say(f"{line}\n"))
            soaked = soak.run(options.faults or sys.maxsize, options.minutes)
        say(json.dumps(soaked.summary() | {"seed": options.seed}, indent=1) + "\n")
        sys.exit(not soaked.is_good)
    survived: list[tuple[Fault, float]] = []
    tests = str(Path(__file__).resolve().parents[1] / "tests")
    with tempfile.TemporaryDirectory() as home, Kernel(Path(home), env={"PYTHONPATH": tests}) as kernel:
        chaos = Chaos(kernel, options.ranks)
        Path(options.replay).parent.mkdir(parents=True, exist_ok=True)
        for number, fault in enumerate(faults(options), 1):
            with Path(options.replay).open("a") as replay:
                replay.write(f"{fault}\n")
            seconds = survive(chaos, fault, number * STEPS)
            survived.append((fault, seconds))
            say(f"{number:5d}  {fault}  usable after {seconds:.2f} s\n")
        digest = chaos.digest()
        kernel.run("%hvd restart", timeout=120)
        alone = Chaos(kernel, options.ranks)
        alone.lap(len(survived) * STEPS)
        same = alone.digest() == digest
    deaths = sorted(seconds for fault, seconds in survived if expected(fault) == "RankDied")
    summary = {
        "faults": len(survived),
        "same parameters as without faults": same,
        "usable after a death, p50 s": round(statistics.median(deaths), 2) if deaths else None,
        "usable after a death, worst s": round(deaths[-1], 2) if deaths else None,
        "seed": options.seed,
    }
    say(json.dumps(summary, indent=1) + "\n")
    sys.exit(not same)


def arguments() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--elastic", action="store_true")
    parser.add_argument("--spares", type=int, default=0, help="of each host of an elastic job")
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--faults", type=int, default=0, help="how many at most; 0: as many as the minutes allow")
    parser.add_argument("--minutes", type=float, help="end after so long (default: with --faults never, else 10)")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 32))
    parser.add_argument("--replay", default="build/soak.txt", help="where the sentences are written")
    parser.add_argument("--from", dest="replay_from", default="", help="a file of sentences to play instead")
    options = parser.parse_args()
    if options.minutes is None:
        options.minutes = math.inf if options.faults else 10.0
    return options


if __name__ == "__main__":
    main()
