"""What several test files share: a fixed seed, the map written a second time, and ``tpl``."""

import sys
from collections.abc import Callable, Iterator, Sequence

import pytest
import tensorly
import torch
from implementations import IMPLEMENTATIONS, implementation  # noqa: F401
from torch import Tensor

# The tests' tensors are small, and one process per core runs them: more threads only wait for
# each other.
torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def fixed_seed() -> None:
    torch.manual_seed(0)


@pytest.fixture
def without_kernels() -> Iterator[None]:
    with implementation("torch"):
        yield


@pytest.fixture
def tensorly_numpy() -> Iterator[None]:
    """tensorly on NumPy arrays; importing tensorly-torch sets another backend for all."""
    with tensorly.backend_context("numpy"):
        yield


@pytest.fixture
def assert_same_gradients() -> Callable[..., None]:
    """Two lists of gradients are the same map's: equal to 1e-5 of their norm.

    W is small, so its gradients are large and differ in the last digits by the order of sums.
    """
    return _assert_same_gradients


def _assert_same_gradients(got: Sequence[Tensor], expected: Sequence[Tensor]) -> None:
    for g, e in zip(got, expected, strict=True):
        assert g.dtype == e.dtype
        assert e.norm() > 0
        assert (g - e).norm() <= 1e-5 * e.norm()


@pytest.fixture
def reference() -> Callable[..., Tensor]:
    """``reference(layer, x)``: the layer's map in float64, one mode after the other (Eq. 1, 13)."""
    return _reference


def _reference(layer: torch.nn.Module, x: Tensor) -> Tensor:
    z = x.detach().double()
    for k, W in enumerate(layer.Ws):
        if W is None:
            continue
        U = _polar(W.detach().double(), layer.eps[k], layer.eps_mode)
        axis = k - layer.order
        A = U if layer.transposed else U.mT
        z = torch.tensordot(z, A, dims=([axis], [1])).movedim(-1, axis)
    return z


def _polar(W: Tensor, eps: float, eps_mode: str) -> Tensor:
    """Eq. 3 by the singular value decomposition: U's singular values are σ/√(σ²+ε²)."""
    left, sigma, right = torch.linalg.svd(W, full_matrices=False)
    unit = sigma.square().mean() if eps_mode == "relative" else 1.0
    return left * (sigma / (sigma.square() + eps**2 * unit).sqrt()) @ right


@pytest.fixture
def tpl(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., tuple[int, str, str]]:
    """``tpl("run", "oct")``: the exit code, and what was printed to stdout and to stderr."""
    from tensorprojection.cli import main as cli

    def call(*arguments: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["tpl", *map(str, arguments)])
        capsys.readouterr()
        code = 0
        try:
            cli.main()
        except SystemExit as ended:
            code = ended.code or 0
        out, err = capsys.readouterr()
        return code, out, err

    return call
