"""Change one line at a time, and report the changes that no test notices.

``python -m mutation`` from the folder ``tests``. Each change (``<`` to ``<=``, ``+`` to ``-``, a
number to the next) is made in a process of its own, forked from one that has imported torch and
pytest already, so that it costs seconds. What survives is printed: it wants a test, or does not
matter and a reader can say why.
"""

from __future__ import annotations

import argparse
import ast
import copy
import importlib.abc
import importlib.util
import os
import random
import signal
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

# The modules, and the tests that are theirs.
TARGETS = {
    "tensorprojection.ops.polar": (
        "ops/test_polar.py",
        "ops/test_matmul_only.py",
        "ops/test_third_derivatives.py",
    ),
    "tensorprojection.ops.matmul_only": ("ops/test_matmul_only.py", "ops/test_polar.py"),
    "tensorprojection.ops.spectrum": ("ops/test_spectrum.py", "ops/test_polar.py"),
    "tensorprojection.ops.multilinear": (
        "ops/test_multilinear_plain.py",
        "ops/test_multilinear.py",
    ),
    "tensorprojection.ops.plan": ("ops/test_plan_costs.py", "ops/test_plan.py"),
    "tensorprojection.studies.training.seeds": (
        "studies/training/test_seeds.py",
        "studies/training/test_split.py",
    ),
    "tensorprojection.studies.data.splits": (
        "studies/data/test_splits.py",
        "studies/training/test_split.py",
    ),
}

SWAPS: dict[type[ast.AST], type[ast.AST]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.Mult,
    ast.Pow: ast.Mult,
    ast.MatMult: ast.Add,
    ast.And: ast.Or,
    ast.Or: ast.And,
    ast.USub: ast.UAdd,
}
KILLED, SURVIVED, ENDLESS, BROKEN = range(4)


@dataclass(frozen=True)
class Mutant:
    """One changed place of a module."""

    module: str
    line: int
    what: str
    tree: ast.Module


def mutants(module: str) -> Iterator[Mutant]:
    """Every change of the module that is made here."""
    tree = ast.parse(_source(module))
    skipped = _annotations(tree)
    for k, node in enumerate(ast.walk(tree)):
        if id(node) in skipped:
            continue
        changed = copy.deepcopy(tree)
        twin = next(found for i, found in enumerate(ast.walk(changed)) if i == k)
        what = _change(twin)
        if what is not None:
            yield Mutant(module, getattr(node, "lineno", 0), what, changed)


def _source(module: str) -> str:
    return _file(module).read_text()


def _file(module: str) -> Path:
    return (ROOT / "src" / module.replace(".", "/")).with_suffix(".py")


def _annotations(tree: ast.AST) -> set[int]:
    """Nodes that are only read by type checkers, or only when something is raised or shown."""
    found: set[int] = set()
    for node in ast.walk(tree):
        parts: list[ast.AST | None] = []
        if isinstance(node, ast.FunctionDef):
            arguments = node.args
            every = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
            parts = [node.returns, *(one.annotation for one in every)]
            parts += [one.annotation for one in (arguments.vararg, arguments.kwarg) if one]
        elif isinstance(node, ast.AnnAssign):
            parts = [node.annotation]
        elif isinstance(node, ast.JoinedStr) or (
            isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        ):
            parts = [node]
        elif isinstance(node, ast.keyword) and node.arg == "strict":  # of zip: it checks, no more
            parts = [node.value]
        for part in parts:
            if part is not None:
                found.update(id(inner) for inner in ast.walk(part))
    return found


def _change(node: ast.AST) -> str | None:
    """Change the node in place, and say how; None where it stays."""
    before = ast.unparse(node)
    if isinstance(node, ast.Compare):
        node.ops[0] = _swapped(node.ops[0])
    elif isinstance(node, ast.BinOp | ast.BoolOp | ast.AugAssign | ast.UnaryOp):
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            node.operand = ast.UnaryOp(ast.Not(), node.operand)
        else:
            node.op = _swapped(node.op)
    elif isinstance(node, ast.Constant) and type(node.value) is bool:
        node.value = not node.value
    elif isinstance(node, ast.Constant) and type(node.value) in (int, float):
        node.value = node.value + 1
    elif isinstance(node, ast.IfExp):
        node.body, node.orelse = node.orelse, node.body
    after = ast.unparse(node)
    return None if before == after else f"{before}  ->  {after}"


def _swapped(operator: ast.AST) -> ast.AST:
    return SWAPS.get(type(operator), type(operator))()


class Changed(importlib.abc.MetaPathFinder, importlib.abc.InspectLoader):
    """Imports the mutant in place of its module."""

    def __init__(self, mutant: Mutant) -> None:
        self.mutant = mutant

    def find_spec(self, name, path=None, target=None):
        if name != self.mutant.module:
            return None
        return importlib.util.spec_from_file_location(name, _file(name), loader=self)

    def get_source(self, fullname):
        return None

    def exec_module(self, module):
        tree = ast.fix_missing_locations(self.mutant.tree)
        exec(compile(tree, str(module.__spec__.origin), "exec"), module.__dict__)


def outcome(mutant: Mutant, seconds: int) -> int:
    """Run the module's tests on the mutant, in a process of its own."""
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    code = BROKEN
    try:
        os.setpgrp()
        signal.signal(signal.SIGALRM, lambda *_: os._exit(ENDLESS))
        signal.alarm(seconds)
        silence = os.open(os.devnull, os.O_WRONLY)
        os.dup2(silence, 1)
        os.dup2(silence, 2)
        code = _tests(mutant)
    finally:
        os._exit(code)


def _tests(mutant: Mutant) -> int:
    import pytest

    sys.meta_path.insert(0, Changed(mutant))
    files = [str(ROOT / "tests" / name) for name in TARGETS[mutant.module]]
    options = ["-x", "-q", "-p", "no:cacheprovider", "-m", "not heavy", "--no-header"]
    ended = pytest.main([*options, *files])
    return SURVIVED if ended == pytest.ExitCode.OK else KILLED


def main() -> None:
    parser = argparse.ArgumentParser(prog="mutation", description=__doc__)
    parser.add_argument("--each", type=int, default=0, help="so many per module; 0: all")
    parser.add_argument("--seconds", type=int, default=300, help="a mutant that takes longer ends")
    parser.add_argument("modules", nargs="*", default=list(TARGETS))
    chosen = parser.parse_args()
    os.chdir(ROOT)
    import numpy  # noqa: F401 - these take long to import
    import polars  # noqa: F401
    import pytest  # noqa: F401
    import torch

    torch.set_num_threads(1)
    for module in chosen.modules:
        found = list(mutants(module))
        if 0 < chosen.each < len(found):
            found = sorted(random.Random(0).sample(found, chosen.each), key=lambda one: one.line)
        unchanged = Mutant(module, 0, "nothing", ast.parse(_source(module)))
        if outcome(unchanged, chosen.seconds) != SURVIVED:
            sys.exit(f"The tests of {module} fail, or take too long, without any change.")
        codes = []
        for mutant in found:
            codes.append(outcome(mutant, chosen.seconds))
            if codes[-1] == SURVIVED:
                print(f"  survived  {module}:{mutant.line}  {mutant.what}", flush=True)
        if BROKEN in codes:
            sys.exit(f"{codes.count(BROKEN)} mutants of {module} could not be tested at all.")
        noticed = len(codes) - codes.count(SURVIVED)
        print(f"{module}: {noticed} of {len(codes)} noticed", flush=True)


if __name__ == "__main__":
    main()
