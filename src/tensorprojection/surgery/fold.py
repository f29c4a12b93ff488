"""fold: a model without its projections, for deployment."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from ..errors import ProjectionValueError
from ..hope import HOPE
from .mark import MAP, mark
from .run import arguments, check_model, count, duplicate, run
from .step import Step
from .table import THE_MODEL, table


@dataclass(frozen=True)
class FoldReport:
    """What :func:`fold` did; ``print`` shows it as a table.

    Args:
        steps: one a projection, in the order of the graph.
        parameters_before: of the model.
        parameters_after: of the folded model, its constants included.
        difference: the largest difference of the outputs for the example.
    """

    steps: tuple[Step, ...]
    parameters_before: int
    parameters_after: int
    difference: float

    def __str__(self) -> str:
        rows = [[s.name, f"{s.in_shape} -> {s.out_shape}", s.became] for s in self.steps]
        return "\n".join(
            [
                table(["folded", "shapes", "became"], rows),
                f"parameters of the model: {self.parameters_before:,} -> {self.parameters_after:,}",
                f"largest difference of the example's outputs: {self.difference:.1e}",
            ]
        )


class Folded(NamedTuple):
    """A model that needs nothing but torch, and what was done to get it."""

    model: torch.fx.GraphModule
    report: FoldReport


def fold(model: nn.Module, example_input: Tensor | Sequence[Any]) -> Folded:
    """The model for deployment: no projections, no decompositions, nothing but torch's operations.

    >>> import tensorprojection as tp
    >>> network = nn.Sequential(nn.Conv2d(3, 8, 3), tp.TensorProjection((8, 6, 6), (4, None, None)))
    >>> x = torch.randn(2, 3, 8, 8)
    >>> folded, report = fold(network, x)
    >>> print(report)
    folded  shapes                  became
    1       (8, 6, 6) -> (4, 6, 6)  part of the convolution before it
    parameters of the model: 256 -> 112
    largest difference of the example's outputs: ...
    >>> torch.allclose(folded(x), network.eval()(x), atol=1e-5)
    True

    What becomes of a projection:

    - The channels' part (axis 1) merges into the convolution right before it, or right after it,
      where that makes fewer parameters; else, if it is all there is, it becomes a 1×1 convolution.
    - A projection with a linear layer right after it, or Flatten and a linear layer, merges into
      that where this makes fewer parameters.
    - All else becomes products with constant matrices.

    A :class:`HOPE` becomes a convolution or a linear layer. "Right before" means that no other
    operation lies between and that nothing else uses the result in between.

    The result computes what the model computes in eval mode, to rounding; fold runs the example
    through both, and refuses to return a model that differs. It takes batches of any size if the
    model does, does not learn, and keeps the device and the type that it was folded on. Save it
    with ``torch.save``, or export it with ``torch.export`` or ``torch.onnx.export(dynamo=True)``.

    Args:
        model: stays as it is. torch.export must be able to follow it.
        example_input: a tensor, or a tuple of the model's arguments; axis 0 is the batch.
    """
    # Only here: a program that trains does not need the graph tools.
    from .graph import Graph, graph_of
    from .projected import Projected

    check_model(model)
    args = arguments(example_input)
    twin = duplicate(model)
    expected = run(twin, args, "a model that runs on example_input")
    hopes = [(name, m) for name, m in twin.named_modules() if isinstance(m, HOPE)]
    graph = Graph(graph_of(mark(twin), args))
    steps = [Projected(graph, node).fold() for node in graph.nodes if node.target == MAP]
    steps += [_hope_step(name, layer) for name, layer in hopes]
    if not steps:
        raise ProjectionValueError("Expected a model with a projection to fold, got none in use.")
    folded = graph.finish()
    _check_plain(folded)
    difference = _difference(run(folded, args, "a folded model that runs"), expected)
    return Folded(folded, FoldReport(tuple(steps), count(model), count(folded), difference))


def _hope_step(name: str, layer: HOPE) -> Step:
    became = "a linear layer" if layer.patch is None else "a convolution"
    return Step(name or THE_MODEL, layer.in_shape, layer.out_shape, became)


def _check_plain(folded: torch.fx.GraphModule) -> None:
    ours = [
        str(node.target) for node in folded.graph.nodes if "tensorprojection" in str(node.target)
    ]
    if ours:
        raise ProjectionValueError(
            "Expected projections as modules, which can be folded, got a model that calls this "
            f"library's functions itself: {', '.join(ours)}."
        )


def _difference(got: Any, expected: Any) -> float:
    """The largest difference of the outputs; an error where it is more than rounding."""
    largest = 0.0
    for a, b in zip(tree_leaves(got), tree_leaves(expected), strict=True):
        if not isinstance(b, Tensor) or not b.is_floating_point() or not b.numel():
            continue
        equal = (a == b) | (a.isnan() & b.isnan())  # infinities too
        difference = (a.double() - b.double()).abs().masked_fill(equal, 0).max().item()
        scale = b.double().abs().nan_to_num(posinf=0.0).max().item()
        allowed = max(1e-5, 16 * torch.finfo(b.dtype).eps) * max(1.0, scale)
        if not difference <= allowed:  # so that NaN is refused
            raise ProjectionValueError(
                "Expected the folded model to give the same outputs for example_input, got a "
                f"difference of {difference:.1e}. Does the model give the same twice?"
            )
        largest = max(largest, difference)
    return largest
