"""The package's rooms, and who imports whom."""

import ast
from pathlib import Path

import tensorprojection

ROOT = Path(tensorprojection.__file__).parent

# From the foundation up. A file in the root is a room of its own.
RULES = ["errors", "shapes", "eps", "start_values"]
ORDER = [*RULES, "engine", "algebra", "penalties", "functional", "nn", "mpca", "surgery", ""]
# What uses the library, in the same order; by its public names alone, whose rooms these are.
USERS = ["stopping", "output", "studies", "bench", "cli", "__main__"]
PUBLIC = ["errors", "penalties", "functional", ""]


def room(module):
    """The room of a module: the first part of its name behind the package's, "" for the root."""
    return module.partition(".")[0]


def modules():
    for path in sorted(ROOT.rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        yield path, [part for part in parts if part != "__init__"], parts[-1] == "__init__"


def from_root(name):
    """Where a name that is imported from the root comes from: a module, or the root itself."""
    return name if (ROOT / name).is_dir() or (ROOT / f"{name}.py").is_file() else ""


def imported(path, name, is_package):
    """The package's own modules that a file imports, also those inside of functions."""
    home = name if is_package else name[:-1]
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.level:
            base = home[: len(home) - node.level + 1]
            target = [*base, *(node.module or "").split(".")] if node.module else base
            for alias in node.names:
                yield ".".join(target) if target else from_root(alias.name)
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith(
            "tensorprojection"
        ):
            inside = node.module.partition(".")[2]
            for alias in node.names:
                yield inside or from_root(alias.name)
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
