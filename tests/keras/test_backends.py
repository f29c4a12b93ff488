"""The suite in suite/ on every backend, each in a process of its own, for Keras has one for each.

Alone: KERAS_BACKEND=jax python tests/keras/test_backends.py -x -k orthonormal
"""

import importlib.util
import os
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import pytest
from environments import environment_with

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
ROOM = ROOT / "src" / "tensorprojection" / "keras"

# Modules with examples; those of another backend cannot be imported.
NAMES = ("__init__", "convert", "initializers", "layers")
EXAMPLES = [ROOM / f"{name}.py" for name in NAMES]

PACKAGES = {"torch": ["torch"], "jax": ["jax"], "tensorflow": ["tensorflow", "tensorflow-cpu"]}


def command(*arguments, python=sys.executable):
    """A run of pytest that knows nothing of the tests around it, and takes our warnings for errors.

    Warnings of the frameworks themselves are theirs.
    """
    return [
        *(str(python), "-m", "pytest", "-q", "-p", "no:cacheprovider", "-o", "addopts="),
        *("-o", "filterwarnings=error:::tensorprojection", "--strict-markers"),
        *("-o", "doctest_optionflags=ELLIPSIS", "--doctest-modules"),
        *("--rootdir", str(ROOT), f"--confcutdir={HERE / 'suite'}"),
        *map(str, arguments),
    ]


def environment(backend):
    return {
        **os.environ,
        "KERAS_BACKEND": backend,
        "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")]),
        "XLA_FLAGS": "--xla_force_host_platform_device_count=2",  # for data parallelism on JAX
        "TF_CPP_MIN_LOG_LEVEL": "3",
        "OMP_NUM_THREADS": "1",  # matrices are small, and other tests run beside these
        "OPENBLAS_NUM_THREADS": "1",
    }


def require(*distributions):
    """Skips unless one of them is installed."""
    for name in distributions:
        try:
            return version(name)
        except PackageNotFoundError:
            pass
    pytest.skip(f"{distributions[0]} is not installed: pip install {distributions[-1]}")
    return None


def run(backend, *arguments, python=sys.executable):
    require("keras")
    require(*PACKAGES[backend])
    done = subprocess.run(
        command(*arguments, python=python),
        env=environment(backend),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout[-8000:]}\n{done.stderr[-2000:]}"
    assert " passed" in done.stdout


def test_suite_on_torch():
    run("torch", HERE / "suite", *EXAMPLES, "-m", "not heavy")


# On JAX in two processes, which take half of the time where there are two cores.
CONVERT = ROOM / "convert.py"  # to PyTorch and back
LAYERS = [
    *(HERE / "suite" / f"test_{name}.py" for name in ("layers", "authors")),
    *(path for path in EXAMPLES if path != CONVERT),
]


@pytest.mark.heavy
def test_suite_on_jax():
    others = sorted({*(HERE / "suite").glob("test_*.py")} - {*LAYERS})
    errors = f"{LAYERS[0]}::test_errors_are_those_of_the_pytorch_layer"
    run("jax", *others, errors, CONVERT, "-m", "not heavy")


def test_layers_on_jax_where_torch_is_not_installed(tmp_path):
    require("jax")
    python = environment_with(tmp_path / "without torch", "jax", "keras", "pytest")
    torch = subprocess.run([python, "-c", "import torch"], capture_output=True, check=False)
    assert b"No module named 'torch'" in torch.stderr
    run("jax", *LAYERS, "-m", "not heavy", python=python)


@pytest.mark.heavy
@pytest.mark.parametrize("backend", ["jax", "torch"])
def test_what_takes_longer(backend):
    run(backend, HERE / "suite", "-m", "heavy")


@pytest.mark.heavy
def test_suite_on_tensorflow():
    run("tensorflow", HERE / "suite", *EXAMPLES)


def test_a_backend_that_is_absent_is_named():
    with pytest.raises(pytest.skip.Exception, match=r"^no-such is not installed: pip install no-"):
        require("no-such", "no-such-cpu")


if __name__ == "__main__":
    backend = os.environ.get("KERAS_BACKEND", "jax")
    if importlib.util.find_spec("keras") is None:
        sys.exit("keras is not installed")
    arguments = [HERE / "suite", *EXAMPLES, *sys.argv[1:]]
    sys.exit(subprocess.call(command(*arguments), env=environment(backend)))
