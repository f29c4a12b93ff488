"""``python -m kernels.run_sanitized library``: every function of the kernels, on many shapes.

In a process of its own, which a sanitizer ends where it finds something.
"""

import sys
from pathlib import Path

import torch

import tensorprojection as tp
from tensorprojection.ops.kernels import calls, library
from tensorprojection.ops.limits import MOST_AXES

from .compiled import assert_right, plan_of, polar, polar_gradient, problem

MAPS = [
    [32, (12, 6), (12, 6)],  # the lanes lie side by side in memory, or are transposed
    [(12, 6), (12, 6), 32],
    [(5, 3), (4, 2), 25],  # runs of lanes that end within a tile
    [(5, 3), 3],
    [(7, 7), (3, 2), (5, 4), (4, 1)],
    [(64, 20), (12, 6), (12, 6)],  # two steps
    [(6, 3), 2, (5, 2)],
    [(300, 70), 3],  # sums in parts, and a derivative by itself
    [(1, 1)],
]
ROWS = [1, 33]

# The most that can be fetched ahead: the last step, of two modes, reads two tensors and writes two;
# to its right are as many numbers as the widest tile has lanes, and there are more tiles than
# pieces, so that another tile follows.
MOST_STREAMS, MANY_ROWS = [(4, 4), (16, 16), (16, 16), (4, 2)], 40

# By rotations, or by M; the last with several threads. An ill-conditioned large W is left to torch.
MATRICES = [(1, 1), (2, 1), (12, 6), (5, 5), (600, 8), (9, 9), (33, 20), (64, 64), (1024, 17)]

LAYERS = [((8, 6, 6), (5, 3, 3)), ((70, 5), (17, 5)), ((3, 4, 5, 6), (1, 2, 3, 4))]


def maps():
    for transposed in (False, True):
        for modes in MAPS:
            for rows in ROWS:
                x, grad, Us = problem(modes, (rows,), transposed=transposed)
                assert_right(x, grad, Us, transposed=transposed)
    assert_right(*problem([(2, 1)] * MOST_AXES, (2,)))
    x, grad, Us = problem(MOST_STREAMS, (MANY_ROWS,), transposed=True)
    assert plan_of(x, Us, transposed=True).pair == ((3, 4), (1, 2))
    assert_right(x, grad, Us, transposed=True)


def matrices():
    for shape in MATRICES:
        for spread in (1.0, 1e-6):
            W = torch.randn(shape) * torch.linspace(1, spread, shape[1])
            for relative in (False, True):
                _, *spectrum = polar(W, 1e-3, relative)
                polar_gradient(W, torch.randn(shape), *spectrum, 1e-3, relative)
    assert polar(torch.full((40, 12), torch.nan))[0].isnan().all()


def layers():
    for large, small in LAYERS:
        for layer, sizes in (
            (tp.TensorProjection(large, small), large),
            (tp.TransposeTensorProjection(small, large), small),
        ):
            for n in ROWS:
                x = torch.randn(n, *sizes, requires_grad=True)
                for wanted in ([x, *layer.parameters()], [*layer.parameters()][:1], [x]):
                    z = layer(x)
                    torch.autograd.grad(z.sum(), wanted)


def main(path):
    torch.manual_seed(0)
    torch.set_num_threads(2)
    opened = library.open_library(Path(path))
    calls.load = lambda: opened
    for check in (maps, matrices, layers):
        check()
    print("all done")


if __name__ == "__main__":
    main(sys.argv[1])
