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
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
PROJECT = PYPROJECT["project"]
EXTRAS = PROJECT["optional-dependencies"]
PINS = dict(re.findall(r"^([\w.-]+)==(.+)$", (ROOT / "constraints.txt").read_text("utf-8"), re.M))
MAKEFILE = (ROOT / "Makefile").read_text("utf-8")
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))


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
        if path.suffix in (".py", ".c", ".h", ".md", ".png", ".css", ".toml", ".txt", ".typed")
        and "_build" not in path.parts
    }
    assert files - members == set()
    linked = re.findall(r"\]\((?!http)([^)#]+)", (ROOT / "README.md").read_text("utf-8"))
    assert linked
    assert {*linked, "pyproject.toml", "hatch_build.py", "Makefile", "constraints.txt"} <= members


def test_a_source_distribution_has_nothing_that_was_built(members):
    assert not [name for name in members if name.endswith((".so", ".pyc", ".partial"))]
    assert not [name for name in members if name.split("/")[0] in (".venv", "runs", "dist")]
    assert not [name for name in members if name.startswith("docs/_build")]


def names(requirements):
    """The packages among these requirements; those of this project's own extras in their place."""
    for requirement in requirements:
        name, inner = re.fullmatch(r"([\w.-]+)(?:\[(.*?)\])?.*", requirement).groups()
        if name == PROJECT["name"]:
            for extra in inner.split(","):
                yield from names(EXTRAS[extra])
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


def test_the_extras_for_tests_have_whatever_the_tests_import():
    declared = {*names(PROJECT["dependencies"]), *names(EXTRAS["heavy"])}
    assert {*names(EXTRAS["test"])} < declared
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


def test_no_framework_is_forced_on_a_user():
    assert [*names(PROJECT["dependencies"])] == ["numpy"]


@pytest.mark.parametrize("extra", ["torch", "studies", "sklearn", "peers", "test"])
def test_an_extra_whose_code_needs_torch_brings_it(extra):
    assert "torch" in names(EXTRAS[extra])


def test_whatever_the_makefile_installs_is_pinned():
    by_name = re.findall(r"^\t\$\(PIP\) ((?:[\w-]+ ?)+)$", MAKEFILE, re.M)
    assert by_name
    installed = {*" ".join(by_name).split(), *names(PYPROJECT["build-system"]["requires"])}
    for extra in re.findall(r"\$\(PIP\) -e \"\.\[(\w+)\]\"", MAKEFILE):
        installed |= {*names(EXTRAS[extra])}
    assert "cyclopts" in installed
    assert installed - {normal(name) for name in PINS} == set()


def test_every_supported_python_is_named():
    named = re.findall(r"Python :: (3\.\d+)", " ".join(PROJECT["classifiers"]))
    assert named == ["3.11", "3.12", "3.13"]
    assert PROJECT["requires-python"] == f">={named[0]}"


def test_workflows_call_make_targets_that_exist():
    commands = [
        command
        for path in WORKFLOWS
        for command in re.findall(r"\brun: *(.*)", path.read_text("utf-8"))
    ]
    called = {re.fullmatch(r"make ([a-z-]+) PYTHON=python", command)[1] for command in commands}
    assert called == {"lint", "test-all", "test-library", "dist", "wheels", "docs"}
    assert called <= {*re.findall(r"^([a-z-]+):", MAKEFILE, re.M)}


def test_workflows_and_wheels_try_every_supported_python():
    supported = re.findall(r"Python :: (3\.\d+)", " ".join(PROJECT["classifiers"]))
    matrices = re.findall(
        r"^ +python-version: \[(.*)\]", "".join(p.read_text("utf-8") for p in WORKFLOWS), re.M
    )
    assert len(matrices) == 2  # the tests, and a release
    assert all(re.findall(r"[\d.]+", matrix) == supported for matrix in matrices)
    wheels = " ".join(PYPROJECT["tool"]["cibuildwheel"]["build"])
    assert re.findall(r"cp(\d+)-", wheels) == [version.replace(".", "") for version in supported]


def test_the_hooks_of_a_commit_have_the_same_ruff():
    hooks = (ROOT / ".pre-commit-config.yaml").read_text("utf-8")
    assert re.search(r"ruff-pre-commit\n +rev: v(\S+)", hooks)[1] == PINS["ruff"]
