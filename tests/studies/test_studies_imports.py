"""The packages of the studies: which may import which, and that only the command line prints."""

import ast
from pathlib import Path

import pytest

import tensorprojection.studies

ROOT = Path(tensorprojection.studies.__file__).parent
FILES = sorted(ROOT.rglob("*.py"))
PAPERS = {"oct", "chest", "kvasir"}  # found by their names alone, as a user's own studies are
# By package: what its modules must not import.
ABOVE = {
    "data": {
        *PAPERS,
        "networks",
        "training",
        "executors",
        "trained",
        "report",
        "study",
        "registry",
        "run",
    },
    "networks": {*PAPERS, "executors", "trained", "report", "study", "registry", "run"},
    "training": {*PAPERS, "executors", "trained", "report", "registry", "run"},
    "executors": {*PAPERS, "trained", "report", "run"},
    "report": {*PAPERS, "executors", "trained", "run"},
    "": set(),
}


def imported(file):
    """The package's own modules that a file imports, from the studies' folder on."""
    here = ("tensorprojection", "studies", *file.relative_to(ROOT).parts[:-1])
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.ImportFrom):
            base = here[: len(here) - node.level + 1] if node.level else ()
            module = (*base, *(node.module.split(".") if node.module else ()))
            for name in node.names:
                yield (*module, name.name)
        elif isinstance(node, ast.Import):
            for name in node.names:
                yield tuple(name.name.split("."))


def name_of(file):
    return str(file.relative_to(ROOT))


@pytest.mark.parametrize("file", FILES, ids=name_of)
def test_imports_go_one_way(file):
    package = file.relative_to(ROOT).parts[0] if file.parent != ROOT else ""
    for module in imported(file):
        if module[:1] != ("tensorprojection",):
            continue
        assert module[1:2] != ("cli",), f"{file} imports the command line"
        assert module[1:2] != ("bench",), f"{file} imports the benchmarks"
        if module[1:2] == ("studies",) and len(module) > 2:
            assert module[2] not in ABOVE[package], f"{file} imports {'.'.join(module)}"


@pytest.mark.parametrize("file", FILES, ids=name_of)
def test_the_terminal_belongs_to_the_command_line(file):
    """No module of the studies prints or draws a bar."""
    tree = ast.parse(file.read_text())
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            assert node.func.id != "print", f"{file}:{node.lineno} prints"
    modules = {".".join(module) for module in imported(file)}
    assert not {m for m in modules if m.startswith(("rich.progress", "rich.live", "tqdm"))}
