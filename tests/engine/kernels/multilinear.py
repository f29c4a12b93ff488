"""The multilinear map and its derivatives in float64, one mode after the other.

The numbers are positive, so that no sum cancels: an error is then measured by what comes out.
"""

import torch

from .by_kernels import run_gradients, run_map, tiled

TOLERANCE = 3e-6  # of the norm


def numbers(*shape):
    return torch.rand(*shape) + 0.5


def matrices(modes):
    """A p×q matrix for (p, q), None for a mode left alone, of which only the size is given."""
    return [None if isinstance(mode, int) else numbers(*mode) for mode in modes]


def problem(modes, batch=(), *, transposed=False):
    """An input, the gradient of its map, and the matrices."""
    large, small = (
        [mode if isinstance(mode, int) else mode[side] for mode in modes] for side in (0, 1)
    )
    X, Z = numbers(*batch, *large), numbers(*batch, *small)
    return (*((Z, X) if transposed else (X, Z)), matrices(modes))


def in_memory(x, order):
    """x with its last len(order) axes in this order in memory, from the outermost on."""
    b = x.ndim - len(order)
    axes = [*range(b), *(b + k for k in order)]
    return x.permute(axes).contiguous().permute([axes.index(a) for a in range(x.ndim)])


def project(x, Us, *, transposed=False):
    z = x.detach().double()
    for k, U in enumerate(Us):
        if U is not None:
            axis = k - len(Us)
            z = torch.tensordot(z, U.double(), dims=([axis], [int(transposed)])).movedim(-1, axis)
    return z


def derivatives(x, grad, Us, *, transposed=False):
    """dL/dx, and dL/dU by mode."""
    by_mode = []
    for k, U in enumerate(Us):
        if U is None:
            by_mode.append(None)
            continue
        rest = project(x, [*Us[:k], None, *Us[k + 1 :]], transposed=transposed)
        large, small = (grad.double(), rest) if transposed else (rest, grad.double())
        by_mode.append(_unfolded(large, k - len(Us)) @ _unfolded(small, k - len(Us)).mT)
    return project(grad, Us, transposed=not transposed), by_mode


def _unfolded(x, axis):
    return x.movedim(axis, 0).reshape(x.shape[axis], -1)


def assert_close(got, right, tolerance=TOLERANCE):
    assert (got is None) == (right is None)
    if got is not None:
        assert got.shape == right.shape
        assert (got.double() - right).norm() <= tolerance * right.norm()


def assert_right(x, grad, Us, *, transposed=False):
    """The kernels' map of x, and the derivatives that follow from grad."""
    layout = tiled(x, Us)
    assert layout.program is not None
    assert_close(
        run_map(x, Us, layout, transposed=transposed), project(x, Us, transposed=transposed)
    )
    grad_x, grad_Us = derivatives(x, grad, Us, transposed=transposed)
    for want_x in (True, False):
        got = run_gradients(x, grad, Us, layout, transposed=transposed, want_x=want_x)
        assert_close(got[0], grad_x if want_x else None)
        for dU, right in zip(got[1], grad_Us, strict=True):
            assert_close(dU, right)
