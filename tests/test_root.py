"""The package's root: every name is there, and none is loaded before its first use."""

import subprocess
import sys

import pytest

import tensorprojection as tp


def run(code: str) -> str:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.parametrize("module", ["", ".errors", ".shapes", ".eps"])
def test_no_framework_is_loaded(module):
    heavy = run(
        f"import sys, tensorprojection{module}\n"
        "print([m for m in ('torch', 'keras', 'jax', 'tensorflow') if m in sys.modules])"
    )
    assert heavy == "[]"


def test_every_name_is_there():
    assert {*tp.__all__, "MPCA"} <= set(dir(tp))
    assert all(getattr(tp, name) is not None for name in tp.__all__)


def test_without_torch_one_line_says_what_to_install():
    said = run(
        "import sys; sys.modules['torch'] = None\n"
        "import tensorprojection as tp\n"
        "try: tp.TensorProjection\n"
        "except ImportError as error: print(error)"
    )
    assert said == (
        "tensorprojection.TensorProjection needs torch: pip install 'tensorprojection[torch]'."
    )


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'Tensorprojection'"):
        _ = tp.Tensorprojection
