"""What is not torch's public interface: in one file, and each of it means what it is used for."""

import ast
from pathlib import Path

import pytest
import torch
from torch.autograd import forward_ad
from torch.utils._python_dispatch import TorchDispatchMode

import tensorprojection
from tensorprojection.engine import torch_private

SOURCES = Path(tensorprojection.__file__).parent
MODULES = {"torch", "forward_ad", "Tensor"}


def private_names(path):
    """Private names of torch in a file: ``torch._C``, ``from torch.utils._pytree import …``."""
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.level == 0:
            parts = [*(node.module or "").split("."), *(alias.name for alias in node.names)]
            if parts[0] == "torch" and any(part.startswith("_") for part in parts):
                yield ".".join(parts)
        elif isinstance(node, ast.Attribute) and node.attr.startswith("_"):
            owner = ast.unparse(node.value).split(".")[0]
            name = ast.unparse(node)
            if owner in MODULES and not node.attr.endswith("__") and "torch.ops.aten" not in name:
                yield name


def test_no_other_file_uses_a_private_name_of_torch():
    found = {
        str(path.relative_to(SOURCES)): names
        for path in SOURCES.rglob("*.py")
        if (names := sorted(private_names(path)))
    }
    assert list(found) == ["engine/torch_private.py"]
    assert any("forward_ad._current_level" in name for names in found.values() for name in names)


def test_transforms_of_torch_func():
    seen = []

    def note(x):
        seen.append(torch_private.in_functorch())
        return x.sum()

    note(torch.ones(2))
    torch.func.grad(note)(torch.ones(2))
    torch.func.vmap(note)(torch.ones(3, 2))
    note(torch.ones(2))
    assert seen == [False, True, True, False]


def test_forward_mode():
    assert not torch_private.in_forward_mode()
    with forward_ad.dual_level():
        assert torch_private.in_forward_mode()
    assert not torch_private.in_forward_mode()


def test_batched_gradients():
    seen = []

    class Note(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, grad):
            seen.append(torch_private.is_legacy_batched(grad))
            return grad

    x = torch.ones(2, requires_grad=True)
    for batched, grad in ((False, torch.ones(2)), (True, torch.eye(2))):
        torch.autograd.grad(Note.apply(x), x, grad, is_grads_batched=batched)
    assert seen == [False, True]


class Asks(torch.nn.Module):
    """Adds 1 where it is exported, 2 where it is compiled."""

    def forward(self, x):
        if torch_private.is_exporting():
            return x + 1
        return x + 2 if torch.compiler.is_compiling() else x


@pytest.mark.parametrize("strict", [False, True])
def test_exporting(strict):
    x = torch.zeros(2)
    assert torch.equal(torch.export.export(Asks(), (x,), strict=strict).module()(x), x + 1)


def test_compiling_is_not_exporting():
    torch._dynamo.reset()
    x = torch.zeros(2)
    assert torch.equal(torch.compile(Asks(), backend="eager", fullgraph=True)(x), x + 2)
    assert torch.equal(Asks()(x), x)


def test_arithmetic_without_modes():
    seen = []

    class Note(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            seen.append(str(function))
            return function(*args, **kwargs or {})

    x = torch.ones(2)
    with Note():
        x + x
        with torch_private.without_modes():
            x * x
    assert seen == ["aten.add.Tensor"]


class HasConstant(torch.nn.Module):
    @torch_private.mark_constant
    def made(self):
        return torch.linalg.eigvalsh(torch.eye(2))

    def forward(self, x):
        return x * self.made()


def test_a_mark_constant():
    torch._dynamo.reset()
    x = torch.ones(2)
    program = torch.export.export(HasConstant(), (x,), strict=True)
    calls = [str(n.target) for n in program.graph.nodes if n.op == "call_function"]
    assert calls == ["aten.mul.Tensor"]
    assert torch.equal(program.module()(x), x)


def test_operators_that_write():
    aten = torch.ops.aten
    assert torch_private.writes(aten.relu_.default)
    assert not torch_private.writes(aten.relu.default)
    assert torch_private.is_operator(aten.relu.default)
    assert not torch_private.is_operator("output")
