"""Layers whose parameters or inputs are DTensors, sharded over processes.

Note [W is gathered]
    U depends on every entry of W, and W is small. So a sharded W is gathered, and each process
    works with the whole of it, on its own samples. Autograd brings the gradient back to W's shards.
    FSDP2 does the same by itself for a forward pass, but not if a method of the layer is called
    outside of one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import Tensor

from ..errors import ProjectionTypeError
from ..ops.dtypes import is_distributed
from ..ops.layout import Matrices, memory_order, strided
from ..ops.multilinear import multilinear

if TYPE_CHECKING:
    from .layers import _Projection


def run_distributed(layer: _Projection, x: Any, Ws: Matrices) -> Tensor:
    """Return the layer's output for a DTensor x, sharded like x but along batch axes only."""
    from torch.distributed.tensor import DTensor, Partial, Replicate, Shard

    for k, W in enumerate(Ws, start=1):
        if W is not None and not is_distributed(W):
            raise ProjectionTypeError(
                f"Expected W{k} to be a DTensor, as the input is, got {type(W).__name__}: "
                "torch.distributed.tensor.distribute_module makes them so."
            )
    mesh, b = x.device_mesh, x.ndim - layer.order
    places = [p if isinstance(p, Shard) and p.dim < b else Replicate() for p in x.placements]
    # Each process has the gradient of its own samples: the parts of a sum.
    of_gradient = [Partial() if isinstance(p, Shard) else Replicate() for p in places]
    parts = [
        None
        if W is None
        else W.redistribute(mesh, [Replicate()] * mesh.ndim).to_local(grad_placements=of_gradient)  # type: ignore[attr-defined]
        for W in Ws
    ]
    samples = x.redistribute(mesh, places).to_local()
    z = multilinear(samples, layer._Us(parts, samples), transposed=layer.transposed)
    shape = (*x.shape[:b], *z.shape[b:])
    stride = strided(shape, memory_order(z, b)).stride
    whole: Tensor = DTensor.from_local(z, mesh, places, shape=shape, stride=stride)  # type: ignore[arg-type]
    return whole
