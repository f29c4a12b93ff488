"""Runs the layer of an installed package, against its formula in float64.

``python try_layer.py --kernels`` asks for the compiled kernels as well.
"""

from __future__ import annotations

import sys
from pathlib import Path


def main() -> None:
    import torch

    import tensorprojection as tp

    assert Path(tp.__file__).is_relative_to(sys.prefix), f"{tp.__file__} is not the installed one."
    print(f"tensorprojection {tp.__version__}, torch {torch.__version__}. {tp.kernels()}")
    assert tp.kernels() or "--kernels" not in sys.argv

    layer = tp.TensorProjection((8, 6, 5), (4, None, 3))
    x = torch.randn(7, 8, 6, 5)
    got = layer(x)

    Ws = [W.detach().double().requires_grad_() for W in layer.parameters()]
    Us = []
    for W, eps in zip(Ws, (layer.eps[0], layer.eps[2]), strict=True):
        left, s, right = torch.linalg.svd(W, full_matrices=False)
        Us.append(left * (s / (s.square() + eps**2).sqrt()) @ right)
    expected = torch.einsum("nabc,ai,ck->nibk", x.double(), *Us)
    torch.testing.assert_close(got.double(), expected, rtol=1e-4, atol=1e-5)

    got.sin().sum().backward()
    expected.sin().sum().backward()
    for W, exact in zip(layer.parameters(), Ws, strict=True):
        assert (W.grad - exact.grad).norm() <= 1e-4 * exact.grad.norm()


if __name__ == "__main__":
    main()
