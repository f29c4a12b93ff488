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

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
ROOM = ROOT / "src" / "tensorprojection" / "keras"

# Modules with examples; those of another backend cannot be imported.
NAMES = ("__init__", "authors", "convert", "frozen", "layers", "starts")
EXAMPLES = [ROOM / f"{name}.py" for name in NAMES]

PACKAGES = {"torch": ["torch"], "jax": ["jax"], "tensorflow": ["tensorflow", "tensorflow-cpu"]}


def command(*arguments):
    """A run of pytest that knows nothing of the tests around it, and takes our warnings for errors.

    Warnings of the frameworks themselves are theirs.
    """
    return [
        *(sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-o", "addopts="),
        *("-o", "filterwarnings=error:::tensorprojection", "--strict-markers"),
        *("-o", "doctest_optionflags=ELLIPSIS", "--doctest-modules"),
        *("--rootdir", str(ROOT), f"--confcutdir={HERE / 'suite'}"),
        *map(str, arguments),
    ]


def environment(backend, **more):
    return {
        **os.environ,
        "KERAS_BACKEND": backend,
        "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")]),
        "XLA_FLAGS": "--xla_force_host_platform_device_count=2",  # for data parallelism on JAX
        "TF_CPP_MIN_LOG_LEVEL": "3",
        "OMP_NUM_THREADS": "1",  # matrices are small, and other tests run beside these
        "OPENBLAS_NUM_THREADS": "1",
        **more,
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


def run(backend, *arguments, **more):
    require("keras")
    require(*PACKAGES[backend])
    done = subprocess.run(
        command(*arguments),
        env=environment(backend, **more),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout[-8000:]}\n{done.stderr[-2000:]}"
    assert " passed" in done.stdout


@pytest.mark.parametrize("backend", ["jax", "torch"])
def test_suite(backend):
    run(backend, HERE / "suite", *EXAMPLES, "-m", "not heavy")


@pytest.mark.heavy
@pytest.mark.parametrize("backend", ["jax", "torch"])
def test_what_takes_longer(backend):
    run(backend, HERE / "suite", "-m", "heavy")


@pytest.mark.heavy
def test_suite_on_tensorflow():
    run("tensorflow", HERE / "suite", *EXAMPLES)


def test_where_torch_is_not_installed():
    run(
        "jax",
        HERE / "suite" / "test_layers.py",
        "-k",
        "saved or errors",
        TENSORPROJECTION_WITHOUT_TORCH="1",
    )


if __name__ == "__main__":
    backend = os.environ.get("KERAS_BACKEND", "jax")
    if importlib.util.find_spec("keras") is None:
        sys.exit("keras is not installed")
    arguments = [HERE / "suite", *EXAMPLES, *sys.argv[1:]]
    sys.exit(subprocess.call(command(*arguments), env=environment(backend)))
