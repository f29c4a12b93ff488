"""Run cases one after the other; print a line of JSON for each.

A process of its own, because a fault in a kernel ends it.
"""

from __future__ import annotations

import argparse
import json
import time
import warnings

import torch

from .cases import draw, program
from .check import complaints
from .shrink import kind, shrink


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("seed", type=int)
    parser.add_argument("first", type=int)
    parser.add_argument("cases", type=int)
    parser.add_argument("seconds", type=float)
    options = parser.parse_args()
    # As the tests: a warning is a defect.
    warnings.simplefilter("error")
    torch.set_num_threads(1)
    end = time.monotonic() + options.seconds
    for index in range(options.first, options.first + options.cases):
        if time.monotonic() >= end:
            return
        _tell(index=index)
        case = draw(options.seed, index)
        if complaints(case):
            case = shrink(case, lambda other: bool(complaints(other)))
            _tell(index=index, kind=kind(case), program=program(case), wrong=complaints(case))


def _tell(**what: object) -> None:
    print(json.dumps(what), flush=True)


if __name__ == "__main__":
    main()
