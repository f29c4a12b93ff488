"""Imports go one way: a room knows the ones before it, never the ones after."""

import ast

import pytest
from import_graph import ORDER, PUBLIC, ROOT, RULES, USERS, edges, modules, room


def allowed(module, target):
    source, target = room(module), room(target)
    if source == target:
        return True
    if source == "keras":  # only its parts for PyTorch know PyTorch
        return target in RULES or module in ("keras.polar_torch", "keras.convert")
    if source in USERS:
        measured = (source, target) == ("bench", "engine")  # the share of the U's in a step
        return measured or target in PUBLIC or target in USERS[: USERS.index(source)]
    if target == "":  # the root's names are for the studies and for users
        return False
    return target in ORDER and ORDER.index(target) < ORDER.index(source)


def test_imports_go_one_way():
    wrong = sorted({f"{a} imports {b or 'the root'}" for a, b in edges() if not allowed(a, b)})
    assert not wrong


def test_every_room_has_its_place():
    found = {room(".".join(name)) for _, name, _ in modules()}
    assert found <= {*ORDER, *USERS, "keras"}


@pytest.mark.parametrize(
    ("source", "target"),
    [
        ("engine.plan", "nn.layers"),
        ("errors", "engine.dtypes"),
        ("algebra.polar", "studies.oct"),
        ("nn.layers", ""),
        ("keras.layers", "algebra.polar"),
        ("engine.kernels.calls", "algebra.polar"),
        ("studies.run", "bench.run"),
        ("bench.run", "cli.main"),
        ("stopping", "studies.run"),
        ("studies.oct", "engine.dispatch"),
        ("cli.spectra", "mpca.energy"),
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
