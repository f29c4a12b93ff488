"""What is packed and declared: a source distribution can run its own tests."""

import ast
import re
import subprocess
import sys
import tarfile
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]


@pytest.fixture(scope="module")
def members(tmp_path_factory):
    """The files in a source distribution of this project."""
    pytest.importorskip("hatchling")
    folder = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "hatchling", "build", "--target", "sdist", "--directory"]
    subprocess.run([*command, str(folder)], cwd=ROOT, check=True, capture_output=True)
    (path,) = folder.glob("*.tar.gz")
    with tarfile.open(path) as archive:
        return {name.partition("/")[2] for name in archive.getnames()}


def test_a_source_distribution_has_what_its_tests_and_readers_need(members):
    folders = ("src", "tests", "docs", "examples", "benchmarks")
    files = {
        str(path.relative_to(ROOT))
        for folder in folders
        for path in (ROOT / folder).rglob("*")
        if path.suffix in (".py", ".c", ".h", ".md", ".png", ".toml", ".txt", ".typed")
    }
    assert files - members == set()
    linked = re.findall(r"\]\((?!http)([^)#]+)", (ROOT / "README.md").read_text("utf-8"))
    assert linked
    assert {*linked, "pyproject.toml", "hatch_build.py", "Makefile", "constraints.txt"} <= members


def test_a_source_distribution_has_nothing_that_was_built(members):
    assert not [name for name in members if name.endswith((".so", ".pyc", ".partial"))]
    assert not [name for name in members if name.split("/")[0] in (".venv", "runs", "dist")]


def names(requirements, extras):
    """The packages among these requirements; those of this project's own extras in their place."""
    for requirement in requirements:
        name, inner = re.fullmatch(r"([\w.-]+)(?:\[(.*?)\])?.*", requirement).groups()
        if name == PROJECT["name"]:
            for extra in inner.split(","):
                yield from names(extras[extra], extras)
        else:
            yield normal(name)


def normal(name):
    return re.sub(r"[-_.]+", "-", name).lower()


def imported(folder):
    """Top-level modules imported anywhere in the files of a folder, by name or by import_module."""
    for path in folder.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Import):
                yield from (alias.name.partition(".")[0] for alias in node.names)
            elif isinstance(node, ast.ImportFrom) and node.level == 0:
                yield (node.module or "").partition(".")[0]
            elif isinstance(node, ast.Call) and "import" in ast.unparse(node.func):
                for argument in node.args:
                    if isinstance(argument, ast.Constant) and isinstance(argument.value, str):
                        yield argument.value.partition(".")[0]


def test_the_extra_for_tests_has_whatever_the_tests_import():
    extras = PROJECT["optional-dependencies"]
    declared = {*names(PROJECT["dependencies"], extras), *names(extras["test"], extras)}
    own = {PROJECT["name"], *(path.stem for path in (ROOT / "tests").rglob("*.py"))}
    modules = {*imported(ROOT / "tests"), *imported(ROOT / "src"), *imported(ROOT / "examples")}
    modules -= {*sys.stdlib_module_names, *own}
    installed = packages_distributions()
    missing = {
        module
        for module in modules
        if module in installed and declared.isdisjoint(map(normal, installed[module]))
    }
    assert {"torch", "numpy", "monai"} <= modules
    assert missing == set()


def test_every_supported_python_is_named():
    named = re.findall(r"Python :: (3\.\d+)", " ".join(PROJECT["classifiers"]))
    assert named == ["3.11", "3.12", "3.13"]
    assert PROJECT["requires-python"] == f">={named[0]}"
