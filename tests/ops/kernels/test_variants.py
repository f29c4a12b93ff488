"""The kernels are right for every processor and vector width that they are compiled for.

And the compiler has nothing to warn of in what is compiled here: two of these ways, and the library
of test_sanitizers.py. The package's own libraries are there already.
"""

from contextlib import suppress

import pytest
import torch

import tensorprojection as tp
from tensorprojection.functional import polar as exact_polar
from tensorprojection.ops.kernels import calls
from tensorprojection.ops.kernels.build import build, library_path
from tensorprojection.ops.kernels.library import LibraryError, open_library

from .compiled import TOLERANCE, assert_right, only_kernels, polar, polar_gradient, problem
from .libraries import WARNINGS, WAYS, runs_here


@pytest.fixture(scope="session", params=WAYS)
def library(request, compiler, tmp_path_factory):
    variant, extra = WAYS[request.param]
    if not runs_here(variant):
        pytest.skip(f"not for this processor: {variant}")
    if not extra:
        with suppress(LibraryError):  # not there, or of other sources
            return open_library(library_path(variant))
    return open_library(build(variant, tmp_path_factory.mktemp("kernels"), (*extra, *WARNINGS)))


@pytest.fixture(autouse=True)
def in_place(library, monkeypatch):
    monkeypatch.setattr(calls, "load", lambda: library)


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize(
    "modes",
    [
        [32, (12, 6), (12, 6)],
        [(12, 6), (12, 6), 32],
        [(12, 7), (13, 5), (11, 8), 3],
        [(64, 20), (12, 6), (12, 6)],
        [(5, 3), (4, 2), 25],
        [(300, 70), 36],
        [(1030, 33)],
    ],
    ids=str,
)
def test_maps(modes, transposed):
    for rows in (1, 45):
        assert_right(*problem(modes, (rows,), transposed=transposed), transposed=transposed)


@pytest.mark.parametrize("spread", [1, 1e3])
@pytest.mark.parametrize("shape", [(5, 5), (12, 6), (9, 9), (130, 33), (64, 64), (1024, 64)])
def test_U_and_its_derivative(shape, spread):
    W = torch.randn(shape) / torch.linspace(1, spread, shape[1])
    dL_dU = torch.randn(shape)
    with only_kernels():
        U, *spectrum = polar(W)
        dL_dW = polar_gradient(W, dL_dU, *spectrum)
    W64 = W.double().requires_grad_()
    U64 = exact_polar(W64, 1e-3)
    right = torch.autograd.grad(U64, W64, dL_dU.double())[0]
    assert (U - U64).abs().max() <= TOLERANCE
    assert (dL_dW - right).norm() <= TOLERANCE * right.norm()


def test_a_layer_step(reference):
    layer = tp.TensorProjection((32, 12, 12), (20, 6, 6))
    x = torch.rand(9, 32, 12, 12) + 0.5
    right = reference(layer, x)
    z = layer(x)
    assert (z - right).norm() <= TOLERANCE * right.norm()
    z.sum().backward()
    exact = tp.TensorProjection((32, 12, 12), (20, 6, 6)).double()
    exact.load_state_dict(layer.state_dict())
    exact(x.double()).sum().backward()
    for W, W64 in zip(layer.parameters(), exact.parameters(), strict=True):
        assert (W.grad - W64.grad).norm() <= 1e-5 * W64.grad.norm()
