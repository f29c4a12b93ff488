"""fold_projections: a model without its projections, for deployment."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ..engine.torch_private import tree_leaves
from ..errors import ProjectionValueError
from ..nn.hope import HOPE
from .compare import difference, own_rounding
from .mark import MAP, mark
from .reports import THE_MODEL, FoldReport, FoldStep
from .run import arguments, check_model, count, duplicate, run


class FoldResult(NamedTuple):
    """A model that needs nothing but torch, and what was done to get it."""

    model: torch.fx.GraphModule
    report: FoldReport


def fold_projections(model: nn.Module, example_input: Tensor | Sequence[Any]) -> FoldResult:
    """The model for deployment: no projections, no decompositions, nothing but torch's operations.

    >>> import tensorprojection as tp
    >>> network = nn.Sequential(nn.Conv2d(3, 8, 3), tp.TensorProjection((8, 6, 6), (4, None, None)))
    >>> x = torch.randn(2, 3, 8, 8)
    >>> folded, report = fold_projections(network, x)
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
    model does, does not learn, and keeps the device and the type that it was folded on. All else
    that the example fixes stays fixed: another flag, number or size of an axis than the example's
    is refused when the folded model is called, by a RuntimeError that names it.

    To keep it, export it with ``torch.export`` or ``torch.onnx.export(dynamo=True)``, or save it
    whole. That is a pickle of a module, which torch loads only if told that its source is trusted;
    this package is not needed to load it::

        torch.save(folded, "folded.pt")
        folded = torch.load("folded.pt", weights_only=False)

    Args:
        model: stays as it is. torch.export must be able to follow it.
        example_input: a tensor, or a tuple of the model's arguments; axis 0 is the batch. Numbers
            and flags among them become constants.
    """
    # Only here: a program that trains does not need the graph tools.
    from .graph import Graph, graph_of
    from .projection_node import ProjectionNode

    check_model(model)
    args = arguments(example_input)
    _check_no_autocast(args)
    _check_values(model, args)
    twin = duplicate(model)
    if any(map(nn.parameter.is_lazy, twin.parameters())):
        run(twin, args, "a model that runs on example_input")
    # Of copies: a model may count its calls.
    expected = run(duplicate(twin), args, "a model that runs on example_input")
    hopes = [(name, m) for name, m in twin.named_modules() if isinstance(m, HOPE)]
    graph = Graph(graph_of(mark(duplicate(twin)), args))
    steps = [ProjectionNode(graph, node).fold() for node in graph.nodes if node.target == MAP]
    steps += [_hope_step(name, layer) for name, layer in hopes if graph.reads(name)]
    if not steps:
        raise ProjectionValueError("Expected a model with a projection to fold, got none in use.")
    eps = graph.coarsest()
    folded = graph.finish()
    _check_plain(folded)
    off = _difference(twin, folded, args, expected, eps)
    for size in (0, 1):
        if _goes_another_way(twin, folded, graph.of_size(size, args), eps):
            graph.refuse_size(size)
    folded.recompile()
    return FoldResult(folded, FoldReport(tuple(steps), count(model), count(folded), off))


fold = fold_projections  # its former name; `functional.fold` folds a tensor


def _check_values(model: nn.Module, args: tuple[Any, ...]) -> None:
    tensors = [*model.parameters(), *model.buffers(), *tree_leaves(args)]
    if any(isinstance(t, Tensor) and t.is_meta for t in tensors):
        raise ProjectionValueError(
            "Expected a model and an example with values, got tensors on the meta device."
        )


def _check_no_autocast(args: tuple[Any, ...]) -> None:
    devices = {"cpu", *(a.device.type for a in tree_leaves(args) if isinstance(a, Tensor))}
    if on := [d for d in sorted(devices - {"meta"}) if torch.is_autocast_enabled(d)]:
        raise ProjectionValueError(
            f"Expected fold outside of an autocast block, got autocast on for {' and '.join(on)}. "
            "What the model computes must not depend on where it is folded: put the block into "
            "its forward."
        )


def _difference(
    twin: nn.Module, folded: nn.Module, args: tuple[Any, ...], expected: Any, eps: float
) -> float:
    buffers = [(b, b.clone()) for b in folded.buffers()]
    got = run(folded, args, "a folded model that runs")
    for b, value in buffers:  # a model may count its calls
        b.copy_(value)
    return difference(got, expected, eps, lambda: own_rounding(twin, args, expected))


def _goes_another_way(
    twin: nn.Module, folded: nn.Module, args: tuple[Any, ...], eps: float
) -> bool:
    """Whether the model gives these samples something else, by a branch that no graph has.

    An exporter takes it for granted that there are two samples or more.
    """
    try:
        expected = run(duplicate(twin), args, "a model that runs")
    except ProjectionValueError:
        return False  # it does not run on these samples either
    try:
        _difference(twin, folded, args, expected, eps)
    except ProjectionValueError:
        return True
    return False


def _hope_step(name: str, layer: HOPE) -> FoldStep:
    became = "a linear layer" if layer.patch is None else "a convolution"
    return FoldStep(name or THE_MODEL, layer.in_shape, layer.out_shape, became)


def _check_plain(folded: torch.fx.GraphModule) -> None:
    graphs = [m.graph for m in folded.modules() if isinstance(m, torch.fx.GraphModule)]
    nodes = [node for graph in graphs for node in graph.nodes]
    ours = [str(node.target) for node in nodes if "tensorprojection" in str(node.target)]
    if ours:
        raise ProjectionValueError(
            "Expected projections as modules outside of control flow, which can be folded, got a "
            f"model that calls this library's functions itself: {', '.join(ours)}."
        )
