import pytest
import torch
from by_name import tables
from rich.console import Console

from tensorprojection.cli.summary import render, summary
from tensorprojection.studies.errors import StudyError
from tensorprojection.studies.networks.oct_cnn import HEADS, oct_cnn
from tensorprojection.studies.networks.unet import FORMS, unet

# Table 2 of the paper, (layer, output shape, parameters), as printed.
BLOCKS = [
    ("Conv2D (relu)", (96, 96, 32), 896),
    ("MaxPooling2D", (48, 48, 32), 0),
    ("Conv2D (relu)", (48, 48, 32), 9248),
    ("MaxPooling2D", (24, 24, 32), 0),
    ("Conv2D (relu)", (24, 24, 32), 9248),
    ("MaxPooling2D", (12, 12, 32), 0),
    ("Conv2D (relu)", (12, 12, 32), 9248),
]
DENSE = [
    ("Flatten", (1152,), 0),
    ("Dense (relu)", (256,), 295_168),
    ("Dense (softmax)", (4,), 1028),
]
OCT = {
    "base": [*BLOCKS, ("MaxPooling2D", (6, 6, 32), 0), *DENSE],
    "tpl1": [*BLOCKS, ("TensorProjection", (6, 6, 32), 144), *DENSE],
    "tpl2": [*BLOCKS, ("TensorProjection", (6, 6, 20), 784), *DENSE],
}
CHEST = {
    "base": [("DenseNet121", (5, 5, 1024), None), ("Conv2D", (5, 5, 64), 65_600)],
    "tpl": [("DenseNet121", (5, 5, 1024), None), ("TensorProjection", (5, 5, 64), 65_536)],
}
for rows in CHEST.values():
    rows += [("Flatten", (1600,), 0), ("Dense (relu)", (256,), 409_856)]
    rows += [("Dense (softmax)", (7,), 1799)]


def by_form(*arguments, **options):
    return {table.form: table for table in tables(*arguments, **options)}


def cells(table):
    return [(row.layer, row.output, row.parameters) for row in table.rows]


def printed(tables, width=80):
    console = Console(width=width, highlight=False)
    with console.capture() as capture:
        console.print(render(tables))
    return capture.get()


@pytest.mark.parametrize("form", ["base", "tpl1"])
def test_oct_is_the_papers_table(form):
    assert cells(by_form("oct")[form]) == OCT[form]


def test_oct_tpl2_differs_from_the_paper_where_a_footnote_says_so():
    table = by_form("oct")["tpl2"]
    differing = [
        (row, paper)
        for row, cell, paper in zip(table.rows, cells(table), OCT["tpl2"], strict=True)
        if cell != paper
    ]
    assert [(row.name, row.output, row.parameters) for row, _ in differing] == [
        ("flatten", (720,), 0),
        ("dense1", (256,), 184_576),
    ]
    assert "The paper prints 1152, but 6 · 6 · 20 = 720" in differing[0][0].note
    assert "The paper prints 295,168, but 720 · 256 + 256 = 184,576" in differing[1][0].note


@pytest.mark.parametrize("form", CHEST)
def test_chest_differs_from_the_paper_where_a_footnote_says_so(form):
    table = by_form("chest")[form]
    extra = next(row for row in table.rows if row.name == "dropout")
    assert "Not in the paper" in extra.note
    ours = [(row.layer, row.output, row.parameters) for row in table.rows if row is not extra]
    assert ours == [*CHEST[form][:-1], ("Dense (softmax)", (4,), 1028)]
    assert "The paper prints 7 outputs and 1,799" in table.rows[-1].note


def test_chest_with_another_backbone():
    table = by_form("chest", backbone="efficientnet-lite0", size=96)["tpl"]
    assert cells(table)[:2] == [
        ("EfficientNet-Lite0", (3, 3, 1280), None),
        ("TensorProjection", (3, 3, 64), 81_920),
    ]


@pytest.mark.parametrize("size", [128, 160, 192])
@pytest.mark.parametrize("channels", [16, 64])
def test_kvasir_lists_every_parameter_of_every_form(size, channels):
    made = by_form("kvasir", size=size, channels=channels)
    assert list(made) == list(FORMS)
    for form, table in made.items():
        with torch.device("meta"):
            network = unet(form, channels, size)
        assert table.total == sum(p.numel() for p in network.parameters())
        assert cells(table)[0] == ("Conv2D (relu)", (size, size, channels), 28 * channels)
        assert cells(table)[-1] == ("Conv2D (sigmoid)", (size, size, 1), channels + 1)


def test_only_the_networks_that_are_asked_for():
    made = tables("oct", models=("tpl-16x3x3", "base"))
    assert [table.form for table in made] == ["tpl-16x3x3", "base"]
    assert made[0].total == 67_372
    # A size that one of the other networks could not have.
    assert [table.form for table in tables("kvasir", size=48, models=("base",))] == ["base"]


def test_dropout_and_leaky_are_those_that_are_asked_for():
    assert any(row.name == "dropout" for row in by_form("chest")["tpl"].rows)
    assert not any(row.name == "dropout" for row in by_form("chest", dropout=0.0)["tpl"].rows)
    made = by_form("kvasir", leaky=True)
    leaky = {form for form, t in made.items() for row in t.rows if row.layer == "LeakyReLU"}
    assert leaky == made.keys() - {"base"}  # it is for projections only


def test_kvasir_shows_the_replaced_layers():
    rows = {row.name: row for row in by_form("kvasir")["tpl-aggressive"].rows}
    assert (rows["down4"].layer, rows["down4"].output) == ("TensorProjection", (4, 4, 128))
    assert rows["down4"].parameters == rows["up4"].parameters == 2 * 16 * 4
    assert (rows["up4"].layer, rows["up4"].output) == ("TransposeTensorProjection", (16, 16, 128))
    assert (rows["join4"].layer, rows["join4"].output) == ("Concatenate", (16, 16, 256))
    assert rows["decoder1.norm2"].layer == "BatchNormalization"


def test_every_oct_head_has_its_table_with_every_parameter():
    made = by_form("oct", size=32)
    assert list(made) == list(HEADS)
    for head, table in made.items():
        trained = [p for p in oct_cnn(head, size=32).parameters() if p.requires_grad]
        assert table.total == sum(p.numel() for p in trained)
        assert not any("The paper prints" in row.note for row in table.rows)


def test_totals():
    assert {form: t.total for form, t in by_form("oct").items() if form in OCT} == {
        "base": 324_836,
        "tpl1": 324_980,
        "tpl2": 215_028,
    }
    assert {form: t.total for form, t in by_form("chest").items()} == {
        "base": 476_484,
        "tpl": 476_420,
        "tpl-mpca": 476_420,
        "tcl": 476_420,
        "gap": 1024 * 256 + 256 + 1028,
    }


def test_totals_of_the_rivals():
    totals = {form: t.total for form, t in by_form("oct").items()}
    assert totals["avg"] == totals["dct-fixed"] == totals["mpca"] == totals["base"]
    assert totals["strided"] == totals["base"] + 9 * 32 * 32 + 32
    assert totals["tpl2-dct"] == totals["tpl2"]
    for form in ("tpl1-blur", "tpl1-block3", "tpl1-dct", "tcl"):
        assert totals[form] == totals["tpl1"]
    kvasir = {form: t.total for form, t in by_form("kvasir").items()}
    assert kvasir["tpl-dct"] == kvasir["tpl-blur"] == kvasir["tpl"]


@pytest.mark.parametrize(
    ("study", "papers"),
    [
        ("oct", {"base", "tpl1", "tpl2"}),
        ("chest", {"base", "tpl"}),
        ("kvasir", {"base", "tpl", "tpl-aggressive"}),
    ],
)
def test_a_note_says_what_is_not_the_papers(study, papers):
    for form, table in by_form(study).items():
        marked = [row for row in table.rows if "Not one of the paper's networks" in row.note]
        assert len(marked) == (0 if form in papers else 1)


def test_a_fixed_projection_has_no_parameters():
    rows = {row.name: row for row in by_form("oct")["dct-fixed"].rows}
    fixed = rows["projection4"]
    assert (fixed.layer, fixed.output, fixed.parameters) == ("FrozenProjection", (6, 6, 32), 0)
    assert {row.name: row for row in by_form("oct")["avg"].rows}[
        "pool4"
    ].layer == "AveragePooling2D"


def test_the_random_state_is_left_alone():
    before = torch.get_rng_state()
    tables("kvasir")
    assert torch.equal(torch.get_rng_state(), before)


def test_printed_tables_fit_80_columns_and_lose_nothing():
    made = tables("kvasir", size=192, channels=64, leaky=True)
    shown = printed(made)
    assert "…" not in shown
    for table in made:
        assert table.title in shown
        for row in table.rows:
            assert f" {row.name} " in shown
            assert f"{row.parameters:,}" in shown
        assert f"{table.total:,}" in shown


def test_printed_tables_mark_each_footnote_once_below():
    made = tables("chest")
    shown = printed(made, width=200)
    assert shown.count("Dropout [1]") == len(made)
    assert shown.count("Dense (softmax) [2]") == len(made)
    assert shown.count("\n[1] Not in the paper") == 1
    assert "(n, 5, 5, 1024)" in shown
    assert "476,420" in shown


@pytest.mark.parametrize(
    ("wrong", "rule"),
    [
        ({"study": "retina"}, "a study of oct, chest, kvasir, .* got 'retina'"),
        ({"study": "oct", "channels": 16}, "channels is not a setting of the oct study"),
        (
            {"study": "kvasir", "backbone": "densenet121"},
            "backbone is not a setting of the kvasir",
        ),
        ({"study": "chest", "backbone": "vgg16"}, "efficientnet-lite0, got 'vgg16'"),
        ({"study": "chest", "size": 100}, "divisible by 32, got 100"),
        ({"study": "oct", "size": 100}, "divisible by 16, got 100"),
        ({"study": "kvasir", "size": 100}, "divisible by 16, got 100"),
        (
            {"study": "kvasir", "size": 0},
            "size: input should be greater than .* 16, got 0",
        ),
    ],
)
def test_wrong_arguments(wrong, rule):
    with pytest.raises((ValueError, StudyError), match=rule):
        tables(**wrong)


def test_the_command_prints_tables(capsys):
    summary("oct")
    assert "215,028" in capsys.readouterr().out
    summary("chest", backbone="efficientnet-lite0")
    assert "81,920" in capsys.readouterr().out


def test_the_command_tells_a_users_mistake_in_one_line():
    with pytest.raises(StudyError, match="divisible by 16, got 100"):
        summary("kvasir", size=100)
