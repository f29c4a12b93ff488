"""``python -m kernels.run_in_bounds library``: a backward pass with the most to ask ahead for.

In a process of its own: what is written out of bounds may bring it down.
"""

import sys
from pathlib import Path

from tensorprojection.engine import dispatch
from tensorprojection.engine.kernels import library
from tensorprojection.engine.kernels.kernel_engine import KernelEngine

from .by_kernels import tiled
from .multilinear import assert_right, problem

MODES = [(4, 4), (16, 16), (16, 16), (4, 2)]
ROWS = 40


def main(path):
    x, grad, Us = problem(MODES, (ROWS,), transposed=True)
    # A last step of two modes reads two tensors and writes two; to its right are as many numbers as
    # the widest tile has lanes, and there are more tiles than pieces, so that another one follows.
    assert tiled(x, Us).plan.pair == ((3, 4), (1, 2))
    with dispatch.use(KernelEngine(library.open_library(Path(path)))):
        assert_right(x, grad, Us, transposed=True)


if __name__ == "__main__":
    main(sys.argv[1])
