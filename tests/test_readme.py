"""The README's code runs, its figures are those of the pages it names, and files it names exist."""

import re
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
TABLE = [line.split("|")[1:-1] for line in README.splitlines() if line.startswith("|")]


def test_the_first_screen_fits():
    assert README[: README.index("<picture>")].count("\n") <= 40


def test_the_first_block_replaces_and_folds_a_readers_model():
    def train(model):
        model(x).square().mean().backward()
        trained.append(model)

    trained = []
    x = torch.randn(2, 3, 16, 16)
    model = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.MaxPool2d(2), nn.Flatten())
    names = {"model": model, "x": x, "train": train}
    exec(compile(BLOCKS[0], "README.md", "exec"), names)
    assert type(trained[0][1]).__name__ == "TensorProjection"
    assert trained[0][1].W2.grad is not None
    torch.testing.assert_close(names["served"](x), trained[0](x), rtol=0, atol=1e-5)


def test_the_second_block_runs_alone(capsys):
    exec(compile(BLOCKS[1], "README.md", "exec"), {})
    assert "TensorProjection((32, 24, 24) -> (20, 12, 12)" in capsys.readouterr().out


@pytest.fixture
def drawings():
    """The modules that read the tables of times."""
    pytest.importorskip("matplotlib")
    sys.path.append(str(ROOT / "docs" / "_ext"))
    try:
        from drawings import hero, orthogonal, speed

        yield hero, orthogonal, speed
    finally:
        sys.path.pop()


def time_of(replaced):
    (cell,) = (cells[2].strip() for cells in TABLE if len(cells) == 3 and replaced in cells[0])
    return cell


def test_its_times_are_those_of_the_performance_page(drawings):
    from tensorprojection.bench.cases import CASES

    hero, _, speed = drawings
    names = [case.name for case in CASES]
    rows = [row for row in speed.rows() if row["case"] in names]

    def span(replaced, memory_format=None):
        chosen = [row for row in rows if replaced in row["replaced / this"]]
        chosen = [row for row in chosen if memory_format in (None, row["format"])]
        found = [1 / speed.relative(row)[speed.NAMES[0]] for row in chosen]
        return f"{min(found):.2f}–{max(found):.2f} ×"

    nchw, nhwc = span("MaxPool2d", "NCHW"), span("MaxPool2d", "NHWC")
    assert time_of("the same shape as the pool") == f"{nchw} in NCHW, {nhwc} in NHWC"
    assert time_of("U-Net") == f"{span('ConvTranspose2d')} of `ConvTranspose2d`"
    assert time_of("1×1 convolution, to as many") == span("Conv2d 1×1")
    orthogonal, up, pool, channels = hero.bars().values()
    cayley, householder, conv, maximum = (
        hero.label(value)[:-1] for _, value in (*orthogonal[1:], up[1], pool[1])
    )
    assert f"takes torch {cayley} and {householder} times as long" in README
    assert f"ConvTranspose2d takes {conv} times as long, MaxPool2d {maximum} times" in README
    assert f"a 1×1 convolution {hero.label(channels[1][1])[:-1]} times" in README
    others = [value for group in (up, pool, channels) for _, value in group[2:]]
    assert f"{min(others):.0f} to {max(others):.0f} times" in README


def test_its_headline_is_the_span_of_the_guide_s_table(drawings):
    """Of the weights that are not square, beside torch's contenders."""
    _, orthogonal, _ = drawings
    names, rows = orthogonal.times()
    ratios = []
    for label, times in rows.items():
        sides = re.match(r"(\d+) × (\d+)", label)
        if sides and sides[1] != sides[2]:
            by_name = dict(zip(names, times, strict=True))
            own = by_name.pop("tp.orthogonal")
            by_name.pop("geotorch")  # not torch's
            ratios += [time / own for time in by_name.values() if time is not None]
    span = f"{min(ratios):.0f} to {float(f'{max(ratios):.2g}'):.0f} times faster"
    pages = [README, *((ROOT / "docs" / name).read_text("utf-8") for name in ("index.md",))]
    for page in pages:
        assert span in page


def test_the_performance_page_has_the_benchmarks_cases(drawings):
    from tensorprojection.bench.cases import INFER, SUITES, TRAIN

    *_, speed = drawings
    for suite, task in (("train", TRAIN), ("infer", INFER)):
        found = [tuple(row.values())[:4] for row in speed.rows(task.capitalize())]
        assert found == [
            (case.name, str(case.batch), case.shapes, memory_format)
            for _, cases in SUITES[suite]
            for case in cases
            for memory_format in case.formats
        ]


SENTENCE = r"(lower|higher) (?:test|validation) loss in (\d+) of (\d+) trials \(([−+][\d.]+)\)"


def test_its_results_are_those_of_the_results_page():
    """Difference and number of trials of each row are in one line of a table of that page."""
    results = (ROOT / "docs" / "results.md").read_text(encoding="utf-8").splitlines()
    found = [said for cells in TABLE for said in re.findall(SENTENCE, cells[1])]
    assert len(found) == 4
    for word, ahead, trials, difference in found:
        better = int(ahead) if word == "lower" else int(trials) - int(ahead)
        count = f"{better}/{trials}"
        assert [line for line in results if difference in line and count in line], difference


@pytest.mark.parametrize(
    "link", re.findall(r"\]\((?!http)([^)]+)\)|(?:src|srcset)=\"([^\"]+)", README)
)
def test_what_it_links_to_is_there(link):
    assert (ROOT / "".join(link)).exists()


YOURS = {"my_study.py", "ddp.py", "bench.md", "table.md"}  # a reader's, or a run's


def test_every_file_that_a_page_names_is_there():
    """A page may leave out the first folders of a path."""
    folders = ("src", "tests", "docs", "benchmarks", "examples", ".github")
    known = [path for folder in folders for path in (ROOT / folder).rglob("*.*")]
    known = ["/" + path.relative_to(ROOT).as_posix() for path in [*known, *ROOT.glob("*")]]
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
    named = 0
    absent = []
    for page in pages:
        if "_build" in page.parts:
            continue
        for name in re.findall(r"[\w./-]*\w\.(?:py|md|h|c|yml)\b", page.read_text("utf-8")):
            if name.startswith(("http", "//")) or Path(name).name in YOURS:
                continue
            named += 1
            tail = "/" + name.lstrip("./")
            if not any(path.endswith(tail) for path in known):
                absent.append((page.name, name))
    assert named > 100
    assert absent == []
