"""Count what one training call ``layer(x)`` runs through: ``python tests/count_path.py``."""

import ast
import sys
from collections import Counter
from pathlib import Path
from unittest import mock

import torch
from import_graph import ROOT, modules, package, private_names

import tensorprojection as tp
from tensorprojection.ops.kernels import calls
from tensorprojection.ops.kernels.library import Library


def profiled(call):
    """Return the package's files that a call runs through, and its deepest stack of own frames."""
    files, depth, deepest = set(), 0, 0

    def note(frame, event, _):
        nonlocal depth, deepest
        path = Path(frame.f_code.co_filename)
        if ROOT not in path.parents:
            return
        if event == "call":
            files.add(str(path.relative_to(ROOT)))
            depth += 1
            deepest = max(deepest, depth)
        elif event == "return":
            depth -= 1

    sys.setprofile(note)
    try:
        call()
    finally:
        sys.setprofile(None)
    return files, deepest


def frames_at_the_kernels(call):
    """Return the most own frames that are on the stack when a compiled kernel is called."""
    most = 0

    def counted(kernel):
        def run(*args):
            nonlocal most
            frame, own = sys._getframe(1), 0
            while frame is not None:
                own += ROOT in Path(frame.f_code.co_filename).parents
                frame = frame.f_back
            most = max(most, own)
            return kernel(*args)

        return run

    library = calls.load()
    if library is None:
        return "none: no compiled kernels"
    kernels = (library.map, library.pair, library.polar, library.polar_grad)
    counting = Library(*map(counted, kernels), library.parallel)
    with mock.patch.object(calls, "load", return_value=counting):
        call()
    return most


def functions():
    """Return the names of autograd.Functions in the sources; their quick forms are derived."""
    found = []
    for path, _, _ in modules():
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.ClassDef) and "Function" in map(ast.unparse, node.bases):
                found.append(node.name)
    return found


def main():
    layer, x = tp.TensorProjection((32, 12, 12), (20, 6, 6)), torch.randn(4, 32, 12, 12)
    layer(x)  # imports and plans
    files, deepest = profiled(lambda: layer(x))
    ops = [name for name in dir(torch.ops.tensorprojection) if not name.startswith("_")]
    ops = [n for n in ops if isinstance(getattr(torch.ops.tensorprojection, n, None), OpPacket)]
    private = {
        name
        for path, parts, _ in modules()
        if package(".".join(parts)) != "keras"
        for name in private_names(path)
    }
    lines = Counter()
    for path, parts, _ in modules():
        lines[package(".".join(parts)) or "root"] += len(path.read_text("utf-8").splitlines())
    rows = {
        "Python files of one training call": f"{len(files)}: {', '.join(sorted(files))}",
        "own frames from forward to a kernel": frames_at_the_kernels(lambda: layer(x)),
        "deepest stack of own frames": deepest,
        "autograd.Functions": f"{len(functions())}: {', '.join(functions())}",
        "custom ops": f"{len(ops)}: {', '.join(ops)}",
        "private names of torch": f"{len(private)}: {', '.join(sorted(private))}",
        **{f"lines in {name}": count for name, count in sorted(lines.items())},
    }
    for name, value in rows.items():
        print(f"{name:35} {value}")


OpPacket = type(torch.ops.aten.mm)

if __name__ == "__main__":
    main()
