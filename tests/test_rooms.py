"""Imports go one way: a room knows the ones before it, never the ones after."""

import ast
from pathlib import Path

import pytest

import tensorprojection

ROOT = Path(tensorprojection.__file__).parent

# From the foundation up. A file in the root is a room of its own.
RULES = ["errors", "shapes", "eps", "start_values"]
ORDER = [*RULES, "engine", "algebra", "penalties", "functional", "nn", "mpca", "surgery", ""]
HALVES = ["stopping", "output", "studies", "bench", "cli", "__main__"]


def room(module):
    """The room of a module: the first part of its name behind the package's, "" for the root."""
    return module.partition(".")[0]


def modules():
    for path in sorted(ROOT.rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        yield path, [part for part in parts if part != "__init__"], parts[-1] == "__init__"


def imported(path, name, is_package):
    """The package's own modules that a file imports, also those inside of functions."""
    home = name if is_package else name[:-1]
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.level:
            base = home[: len(home) - node.level + 1]
            target = [*base, *(node.module or "").split(".")] if node.module else base
            for alias in node.names:
                yield ".".join(target) if target else alias.name
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith(
            "tensorprojection"
        ):
            inside = node.module.partition(".")[2]
            for alias in node.names:
                yield inside or (alias.name if (ROOT / alias.name).exists() else "")
        elif isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.partition(".")[0] == "tensorprojection":
                    yield alias.name.partition(".")[2]


def edges():
    for path, name, is_package in modules():
        if not name:
            continue  # the root names everything, by asking for it when it is asked for
        for target in imported(path, name, is_package):
            yield ".".join(name), target


def allowed(module, target):
    source, target = room(module), room(target)
    if source == target:
        return True
    if source == "keras":  # only its parts for PyTorch know PyTorch
        return target in RULES or module in ("keras.polar_torch", "keras.convert")
    if source in HALVES:
        return True
    if target == "":  # the root's names are for the studies and for users
        return False
    return target in ORDER and ORDER.index(target) < ORDER.index(source)


def test_imports_go_one_way():
    wrong = sorted({f"{a} imports {b or 'the root'}" for a, b in edges() if not allowed(a, b)})
    assert not wrong


def test_every_room_has_its_place():
    found = {room(".".join(name)) for _, name, _ in modules()}
    assert found <= {*ORDER, *HALVES, "keras"}


@pytest.mark.parametrize(
    ("source", "target"),
    [
        ("engine.plan", "nn.layers"),
        ("errors", "engine.dtypes"),
        ("algebra.polar", "studies.oct"),
        ("nn.layers", ""),
        ("keras.layers", "algebra.polar"),
        ("engine.kernels.calls", "algebra.polar"),
    ],
)
def test_what_would_be_wrong_is_seen(source, target):
    assert not allowed(source, target)


def test_the_rules_know_no_framework():
    for name in RULES:
        for node in ast.walk(ast.parse((ROOT / f"{name}.py").read_text("utf-8"))):
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            assert not any(n.partition(".")[0] in ("torch", "keras", "jax") for n in names)
