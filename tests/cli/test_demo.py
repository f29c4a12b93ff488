"""``tpl demo``, with sizes so small that it takes seconds: what it says is what the rows say."""

import json
import math
import re
import statistics

import pytest
from scipy.stats import t as student

from tensorprojection.cli import demo

# Cyclopts wonders why a test calls it as a shell does.
pytestmark = pytest.mark.filterwarnings("ignore:Cyclopts application invoked without tokens")

TITLES = {
    "base": "MaxPooling",
    "avg": "AveragePooling",
    "tpl1": "TensorProjection 1",
    "tpl1-block": "TensorProjection 1, block init",
}
TRIALS = 3


@pytest.fixture
def said(tmp_path, monkeypatch, tpl):
    """Its exit code, the lines that it printed, and the last row of each model, by trial."""
    monkeypatch.setenv("TENSORPROJECTION_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("COLUMNS", "80")
    sizes = {"size": 32, "images": 64, "trials": TRIALS, "epochs": 2}
    monkeypatch.setattr(demo, "SETTINGS", {**demo.SETTINGS, **sizes})
    code, out, err = tpl("demo", "--out", tmp_path / "run", "--jobs", "1")
    assert (code, err) == (0, "")
    rows = {
        model: [
            json.loads((tmp_path / f"run/trials/{k:03d}/{model}.jsonl").read_text().splitlines()[1])
            for k in range(1, TRIALS + 1)
        ]
        for model in TITLES
    }
    return out.splitlines(), rows, tmp_path / "run/report.html"


def test_it_ends_with_a_table_three_lines_and_the_page_all_of_them_from_the_rows(
    said, tpl, monkeypatch
):
    printed, rows, page = said
    # The page
    assert printed[-1] == f"Open the page in a browser: {page}"
    assert "<title>Retinal OCT" in page.read_text(encoding="utf-8")
    # The table: one, of the medians at the last epoch
    (head,) = [k for k, line in enumerate(printed) if "validation medians, epoch 2" in line]
    cells = [re.split(r"\s{2,}", line.strip()) for line in printed[head + 2 : head + 6]]
    for (title, *values), (model, known) in zip(cells, TITLES.items(), strict=True):
        assert title == known
        for value, metric in zip(values, ("loss", "accuracy", "f1"), strict=True):
            median = statistics.median(row[metric] for row in rows[model])
            assert float(value) == pytest.approx(median, abs=6e-4)
    assert printed[head + 6] == ""
    # Three lines in words, by the interval that is corrected for trials which share images
    words = printed[head + 7 : -2]
    assert len(words) == 3
    for line, model in zip(words, ("avg", "tpl1", "tpl1-block"), strict=True):
        pairs = zip(rows[model], rows["base"], strict=True)
        differences = [own["loss"] - base["loss"] for own, base in pairs]
        mean = statistics.mean(differences)
        reach = student.ppf(0.975, TRIALS - 1) * statistics.stdev(differences)
        reach *= math.sqrt(1 / TRIALS + 20 / 44)  # of 64 images, 20 validate
        number = r"([+−][\d.e−]+)"
        found = re.search(f": {number} .*interval {number} to {number}\\)", line)
        assert [float(v.replace("−", "-")) for v in found.groups()] == pytest.approx(
            [mean, mean - reach, mean + reach], abs=6e-4
        )
        ahead = sum(d < 0 for d in differences)
        assert line.startswith(f"{TITLES[model]}: ")
        assert f"better in {ahead} of {TRIALS} trials: " in line
        decided = "better" if mean < 0 else "worse"
        word = "undecided" if abs(mean) <= reach else decided
        assert line.endswith(f": {word if TRIALS >= 6 else 'too few trials to decide'}.")

    # Once more: nothing is trained, it says so, and ends the same; another demo is not mixed in
    code, again, _ = tpl("demo", "--out", page.parent)
    assert code == 0
    assert "has a finished demo: nothing was trained." in again
    assert again.splitlines()[-len(printed[head:]) :] == printed[head:]
    monkeypatch.setattr(demo, "SETTINGS", {**demo.SETTINGS, "images": 80})
    code, out, err = tpl("demo", "--out", page.parent)
    assert (code, out) == (2, "")
    assert err == (
        f"tpl: {page.parent} has a run that is not this version's demo. Remove it, or choose "
        "another --out.\n"
    )
