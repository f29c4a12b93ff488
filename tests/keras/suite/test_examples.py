"""The paper's networks as a Keras user writes them: counts of `tpl summary`, and they learn."""

import runpy
from math import prod
from pathlib import Path

import keras
import pytest

pytest.importorskip("torch", reason="the phantoms need torch")

# A compiler takes its time for whole networks, and torch has none here.
pytestmark = [] if keras.backend.backend() == "torch" else [pytest.mark.heavy]

EXAMPLES = Path(__file__).parents[3] / "examples" / "keras"


def example(name):
    if not EXAMPLES.is_dir():
        pytest.skip("the examples come with a clone of the project, not with the package")
    return runpy.run_path(str(EXAMPLES / name))


@pytest.mark.parametrize(
    ("study", "make"), [("oct", "network"), ("chest", "head"), ("kvasir", "network")]
)
def test_parameters_are_those_of_tpl_summary(study, make):
    for package in ("cyclopts", "monai", "polars", "pydantic"):
        pytest.importorskip(package, reason=f"the studies need {package}")
    from tensorprojection.cli.summary import tables
    from tensorprojection.studies.registry import find_study

    namespace = example(f"{study}.py")
    totals = {table.form: table.total for table in tables(find_study(study))}
    for form in namespace["FORMS"]:
        model = namespace[make](form)
        assert sum(prod(w.shape) for w in model.trainable_weights) == totals[form], form


@pytest.mark.parametrize(
    ("study", "options"),
    [
        ("oct", ["--form", "tpl2", "--size", "32", "--epochs", "3", "--train", "96"]),
        pytest.param(
            *("chest", ["--size", "32", "--weights", "none", "--rate", "1e-3", "--train", "64"]),
            marks=pytest.mark.heavy,
        ),
        pytest.param(
            *("kvasir", ["--size", "32", "--channels", "4", "--epochs", "4", "--train", "60"]),
            marks=pytest.mark.heavy,
        ),
    ],
)
def test_they_train_on_the_phantoms(study, options, rng):
    history = example(f"{study}.py")["main"]([*options, "--test", "16", "--batch", "16"]).history
    assert min(history["loss"][1:]) < history["loss"][0]
    assert len(history["val_loss"]) == len(history["loss"])
