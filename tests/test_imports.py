"""Imports go one way, and the private names of torch are few and in one file."""

import ast

import pytest
from import_graph import (
    LIBRARY,
    PUBLIC,
    ROOT,
    RULES,
    TORCH_ONLY,
    USERS,
    edges,
    modules,
    package,
    private_names,
)


def allowed(module, target):
    source, destination = package(module), package(target)
    if source == destination:
        inside, of = module.partition(".")[2], target.partition(".")[2]
        return not (source == "ops" and inside in TORCH_ONLY and of.startswith("kernels"))
    if source == "keras":  # only its parts for PyTorch import PyTorch
        return destination in RULES or module in ("keras.polar_torch", "keras.convert")
    if source in USERS:
        measured = (source, destination) == ("bench", "ops")  # the share of the U's in a step
        hope = target == "nn.hope"  # no public name of the root: the paper's rival, for its study
        return (
            measured or hope or destination in PUBLIC or destination in USERS[: USERS.index(source)]
        )
    if destination == "":  # the root's names are for users
        return False
    return destination in LIBRARY and LIBRARY.index(destination) < LIBRARY.index(source)


def test_imports_go_one_way():
    wrong = sorted({f"{a} imports {b or 'the root'}" for a, b in edges() if not allowed(a, b)})
    assert not wrong


def test_every_package_has_its_place():
    found = {package(".".join(name)) for _, name, _ in modules()}
    assert found <= {*LIBRARY, *USERS, "keras"}
    in_ops = {path.stem for path in (ROOT / "ops").glob("*.py")} - {"__init__"}
    assert {*TORCH_ONLY} <= in_ops
    assert in_ops - {*TORCH_ONLY} == {"polar", "multilinear"}


@pytest.mark.parametrize(
    ("source", "target"),
    [
        ("ops.plan", "nn.layers"),
        ("errors", "ops.dtypes"),
        ("functional", "studies.oct"),
        ("nn.layers", ""),
        ("keras.layers", "functional"),
        ("ops.kernels.calls", "functional"),
        ("ops.spectrum", "ops.kernels.calls"),
        ("ops.tracing", "ops.kernels"),
        ("init", "penalties"),
        ("studies.run", "bench.run"),
        ("bench.run", "cli.main"),
        ("studies.oct", "ops.polar"),
        ("cli.demo", "mpca.suggest"),
    ],
)
def test_a_wrong_import_is_seen(source, target):
    assert not allowed(source, target)


def test_the_rules_import_no_framework():
    for name in RULES:
        for node in ast.walk(ast.parse((ROOT / f"{name}.py").read_text("utf-8"))):
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            assert not any(n.partition(".")[0] in ("torch", "keras", "jax") for n in names)


# Of nn.Module, which has no public way to ask for hooks.
HOOKS = {"…._forward_hooks", "…._forward_pre_hooks", "…._backward_hooks"}
NAMED_TUPLE = {"…._replace"}


def test_private_names_of_torch_are_in_one_file_and_at_most_ten():
    found = {
        ".".join(name): names
        for path, name, _ in modules()
        if package(".".join(name)) != "keras"
        and (names := private_names(path) - HOOKS - NAMED_TUPLE)
    }
    assert [*found] == ["ops.tracing"], found
    assert "torch.autograd.forward_ad._current_level" in found["ops.tracing"]
    assert len(found["ops.tracing"]) <= 10, sorted(found["ops.tracing"])
