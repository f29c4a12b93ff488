"""The long fuzz: ``make fuzz``, or ``python -m fuzz --minutes 10`` from the folder tests.

For every kind of failure it prints a program that shows it, and ends with 1.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

from .cases import draw, program

_TESTS = Path(__file__).parent.parent
_FOR_EVER = 10**9


def main() -> int:
    parser = argparse.ArgumentParser(prog="fuzz", description=__doc__)
    parser.add_argument("--minutes", type=float, default=5.0, help="how long (default %(default)s)")
    parser.add_argument("--cases", type=int, default=_FOR_EVER, help="how many at most")
    parser.add_argument("--seed", type=int, default=time.time_ns() % 10**6, help="of all cases")
    parser.add_argument("--first", type=int, default=0, help="number of the first case")
    options = parser.parse_args()
    print(f"seed {options.seed}", flush=True)
    end = time.monotonic() + 60 * options.minutes
    kinds: Counter[tuple[str, ...]] = Counter()
    index, last = options.first, options.first + options.cases
    while index < last and time.monotonic() < end:
        index = _work(options.seed, index, last - index, end, kinds)
    for kind, count in kinds.most_common():
        print(f"{count:6d} × {', '.join(kind) or 'nothing special'}")
    print(f"{index - options.first} cases, {kinds.total()} failed")
    return 1 if kinds else 0


def _work(seed: int, first: int, cases: int, end: float, kinds: Counter[tuple[str, ...]]) -> int:
    """Runs one process for as long as it lives; returns the number of the case after its last."""
    limits = [str(seed), str(first), str(cases), str(max(end - time.monotonic(), 0))]
    # New memory has numbers in it that nobody would take for zeros.
    environment = {**os.environ, "MALLOC_PERTURB_": "165"}
    worker = subprocess.Popen(
        [sys.executable, "-m", "fuzz.worker", *limits],
        cwd=_TESTS,
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert worker.stdout is not None
    index, started = first, False
    for line in worker.stdout:
        told = json.loads(line)
        index, started = told["index"], True
        if "program" in told:
            _report(seed, index, tuple(told["kind"]), told["program"], told["wrong"], kinds)
    if worker.wait():
        if not started:
            raise SystemExit(worker.returncode)
        wrong = [f"the process ended with {worker.returncode} here or shortly before"]
        _report(seed, index, ("a fault",), program(draw(seed, index)), wrong, kinds)
    return index + 1


def _report(
    seed: int,
    index: int,
    kind: tuple[str, ...],
    text: str,
    wrong: list[str],
    kinds: Counter[tuple[str, ...]],
) -> None:
    kinds[kind] += 1
    if kinds[kind] == 1 or kind == ("a fault",):
        print(f"\n# Case {index} of seed {seed}: {', '.join(kind) or 'nothing special'}")
        print(text, *(f"# {line}\n" for line in wrong), sep="", flush=True)


if __name__ == "__main__":
    sys.exit(main())
