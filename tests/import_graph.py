"""The package's modules, which imports which, and the private names of torch that they use."""

import ast
from functools import cache
from pathlib import Path

import tensorprojection

ROOT = Path(tensorprojection.__file__).parent

# From the foundation up: a package imports only from those before it. A file in the root is a
# package of its own.
RULES = ["errors", "shapes", "eps", "init_matrices"]
LIBRARY = [
    *RULES,
    "ops",
    "functional",
    "init",
    "penalties",
    "nn",
    "parametrize",
    "mpca",
    "surgery",
    "",
]
# These use the library through its public names, of which these are the packages.
USERS = ["studies", "bench", "cli", "__main__"]
PUBLIC = ["errors", "functional", "init", "penalties", ""]
# Modules of ops that work without the compiled kernels.
TORCH_ONLY = ["spectrum", "torch_steps", "plan", "layout", "limits", "matmul_only", "tracing"]
TORCH_ONLY += ["dtypes"]


@cache
def parsed(path):
    return ast.parse(path.read_text("utf-8"))


def package(module):
    """The first part of a module's name behind the package's own; "" for the root."""
    return module.partition(".")[0]


def modules():
    """Yield path, name as a list, and whether it is an __init__.py, of every module."""
    for path in sorted(ROOT.rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        yield path, [part for part in parts if part != "__init__"], parts[-1] == "__init__"


def edges():
    """Yield (module, imported module), also for imports inside of functions."""
    for path, name, is_package in modules():
        if name:  # the root imports everything when it is asked for
            for target in _imported(path, name, is_package):
                yield ".".join(name), target


def _imported(path, name, is_package):
    home = name if is_package else name[:-1]
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.ImportFrom):
            if node.level:
                base = home[: len(home) - node.level + 1]
            elif (node.module or "").split(".")[0] == "tensorprojection":
                base = []
            else:
                continue
            inside = (node.module or "").removeprefix("tensorprojection").strip(".")
            target = [*base, *filter(None, inside.split("."))]
            for alias in node.names:
                yield _module([*target, alias.name])
        elif isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.partition(".")[0] == "tensorprojection":
                    yield alias.name.partition(".")[2]


def _module(parts):
    """The module of these parts, of which the last may be a name in it."""
    path = ROOT.joinpath(*parts)
    is_module = path.is_dir() or path.with_suffix(".py").is_file()
    return ".".join(parts if is_module else parts[:-1])


def private_names(path):
    """The private names of torch in a file, each cut behind its last private part.

    ``torch._C._functorch.get_interpreter_stack()`` is ``torch._C._functorch``. An attribute is
    torch's if it starts with one underscore and nothing of that name is defined in the package.
    """
    tree = parsed(path)
    roots = {"torch": "torch", "Tensor": "Tensor"}
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "torch":
            for alias in node.names:
                found.add(f"{node.module}.{alias.name}")
                roots[alias.asname or alias.name] = f"{node.module}.{alias.name}"
        elif isinstance(node, ast.Assign | ast.AnnAssign) and isinstance(node.value, ast.Attribute):
            target = node.targets[0] if isinstance(node, ast.Assign) else node.target
            value = ast.unparse(node.value)
            if isinstance(target, ast.Name) and value.startswith("torch."):
                roots[target.id] = value
    others = _imported_elsewhere(tree) | {"self", "cls"}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            first, _, rest = ast.unparse(node).partition(".")
            if first in roots:
                found.add(f"{roots[first]}.{rest}")
            elif first not in others and node.attr not in _defined():
                found.add(f"….{node.attr}")
    cut = {_cut(name) for name in found if _is_private(name)}
    return {name for name in cut if not any(other.startswith(f"{name}.") for other in cut)}


def _is_private(name):
    return any(part[:1] == "_" and part[:2] != "__" for part in name.split("."))


def _cut(name):
    parts = name.split(".")
    last = max(i for i, part in enumerate(parts) if part[:1] == "_")
    return ".".join(parts[: last + 1])


def _imported_elsewhere(tree):
    imports = [n for n in ast.walk(tree) if isinstance(n, ast.Import | ast.ImportFrom)]
    return {
        alias.asname or alias.name.partition(".")[0]
        for node in imports
        for alias in node.names
        if "torch" not in (getattr(node, "module", None) or alias.name).split(".")[0]
    }


@cache
def _defined():
    """All names that the package itself defines."""
    names = set()
    for path in ROOT.rglob("*.py"):
        for node in ast.walk(parsed(path)):
            if isinstance(node, ast.FunctionDef | ast.ClassDef):
                names.add(node.name)
            elif isinstance(node, ast.Name):
                names.add(node.id)
            elif isinstance(node, ast.Attribute) and ast.unparse(node.value) == "self":
                names.add(node.attr)
    return names
