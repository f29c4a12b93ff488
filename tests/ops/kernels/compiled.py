"""The custom ops with the compiled kernels alone, and the multilinear map in float64 beside them.

The numbers are positive, so that no sum cancels and an error is relative to the result.
"""

from contextlib import contextmanager

import pytest
import torch

from tensorprojection.ops import multilinear as _registers_the_map  # noqa: F401
from tensorprojection.ops import polar as _registers_polar  # noqa: F401
from tensorprojection.ops import spectrum, torch_steps
from tensorprojection.ops.layout import layout_of
from tensorprojection.ops.spectrum import Spectrum

TOLERANCE = 3e-6  # of the norm


@contextmanager
def only_kernels():
    """Fail if torch's implementation takes over inside."""

    def fail(*_):
        raise AssertionError("torch's implementation ran in place of the kernels")

    with pytest.MonkeyPatch.context() as patch:
        for name in ("multilinear", "multilinear_backward"):
            patch.setattr(torch_steps, name, fail)
        for name in ("polar_values", "polar_gradients"):
            patch.setattr(spectrum, name, fail)
        yield


def polar(W, eps=1e-3, relative=False):
    """U, and the constants G, V and s of its derivative."""
    U, packed = torch.ops.tensorprojection.polar([W], [eps], relative, torch.float32)
    return U, *Spectrum.unpacked(packed)


def polar_gradient(W, dL_dU, G, V, s, eps=1e-3, relative=False):
    packed = Spectrum(G, V, s).packed()
    backward = torch.ops.tensorprojection.polar_backward
    (dL_dW,) = backward([W], [dL_dU], [packed], [eps], relative)
    return dL_dW


def run_map(x, Us, *, transposed=False):
    with only_kernels():
        return torch.ops.tensorprojection.multilinear(x, Us, transposed)


def run_gradients(x, grad, Us, *, transposed=False, want_x=True):
    """dL/dx or None, and dL/dU by mode."""
    with only_kernels():
        backward = torch.ops.tensorprojection.multilinear_backward
        grad_x, *found = backward(x, grad, Us, transposed, want_x, True)
    by_mode = iter(found)
    return grad_x if want_x else None, [None if U is None else next(by_mode) for U in Us]


def plan_of(x, Us, *, transposed=False):
    """The kernels' plan."""
    return layout_of(x, Us, transposed=transposed).plan


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
    """Compare the kernels' map of x, and the derivatives that follow from grad, with float64."""
    assert_close(run_map(x, Us, transposed=transposed), project(x, Us, transposed=transposed))
    grad_x, grad_Us = derivatives(x, grad, Us, transposed=transposed)
    for want_x in (True, False):
        got = run_gradients(x, grad, Us, transposed=transposed, want_x=want_x)
        assert_close(got[0], grad_x if want_x else None)
        for dU, right in zip(got[1], grad_Us, strict=True):
            assert_close(dU, right)
