"""The documentation builds without a warning, and is whole: pictures, links, names, commands."""

import inspect
import os
import re
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

import tensorprojection as tp

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"

GUIDE = [  # what a reader is promised, page by page
    *("pooling", "channels", "sequences", "upsampling", "dimensions", "mpca", "autoencoder"),
    *("looking", "deployment", "keras", "gpus", "distributed", "paper", "own_study"),
]


def test_every_picture_says_what_it_shows(site):
    found = 0
    for name, page in site.pages.items():
        for image in page.find_all("img"):
            assert image.get("alt", "").strip(), (name, image)
            assert not image["alt"].endswith((".png", ".svg")), (name, image)  # a file is no text
        for drawing in page.find_all("svg", class_="drawing"):
            assert len(drawing["aria-label"]) > 20, name
            found += 1
    assert found >= 3


def test_every_link_inside_leads_somewhere(site):
    checked = 0
    for name, page in site.pages.items():
        for link in page.find_all("a", href=True):
            parts = urlsplit(link["href"])
            if parts.scheme or "_modules" in parts.path:
                continue
            target = name
            if parts.path:
                target = os.path.normpath(os.path.join(os.path.dirname(name), unquote(parts.path)))
                assert (site.folder / target).is_file(), (name, link["href"])
            if parts.fragment and target in site.pages:
                fragment = unquote(parts.fragment)
                assert fragment in site.ids(target) or fragment == "", (name, link["href"])
                checked += 1
    assert checked > 100


def public_names():
    studies = pytest.importorskip("tensorprojection.studies")
    keras = pytest.importorskip("tensorprojection.keras")
    for module in (tp, tp.functional, tp.penalties, studies, keras):
        for name in [*module.__all__, *(["MPCA"] if module is tp else [])]:
            if not inspect.ismodule(getattr(module, name)):
                yield f"{module.__name__}.{name}"


def test_every_public_name_is_on_a_page(site):
    documented = set().union(*(site.ids(name) for name in site.pages if "reference/" in name))
    names = set(public_names())
    assert "tensorprojection.TensorProjection" in names
    assert names - documented == set()


def test_every_public_name_has_an_example():
    for name in public_names():
        module, _, last = name.rpartition(".")
        described = getattr(__import__(module, fromlist=[last]), last)
        own = vars(described).get("__doc__") if inspect.isclass(described) else described.__doc__
        assert ">>>" in (own or ""), name


def test_every_command_is_on_a_page(site):
    main = pytest.importorskip("tensorprojection.cli.main")

    def words(app, path=("tpl",)):
        for name in app:
            if not name.startswith("-"):
                yield "-".join((*path, name))
                yield from words(app[name], (*path, name))

    commands = {*words(main.app)}
    assert {"tpl-run", "tpl-data-check"} <= commands
    assert commands - site.ids("reference/commands.html") == set()
    text = site.pages["reference/commands.html"].get_text()
    assert "--train-share" in text  # a flag that comes from a study's settings
    assert "--older-than" in text


def test_nothing_comes_from_the_network(site):
    loaded = ("script", "img", "iframe", "source", "video", "audio", "embed", "object")
    for name, page in site.pages.items():
        for tag in page.find_all(loaded):
            for key in ("src", "data", "srcset"):
                assert not re.match(r"(https?:)?//", tag.get(key, "")), (name, tag)
        for link in page.find_all("link", href=True):
            assert not re.match(r"(https?:)?//", link["href"]), (name, link)
    for style in site.folder.rglob("*.css"):
        fetched = re.findall(r"(?:url\(|@import )[\"']?((?:https?:)?//[^\"')]+)", style.read_text())
        assert not fetched, style


def test_formulas_need_no_script(site):
    assert any(page.find("math") for page in site.pages.values())
    assert not any("mathjax" in str(page).lower() for page in site.pages.values())


@pytest.mark.parametrize("topic", GUIDE)
def test_the_guide_has_a_notebook_about(topic, site):
    page = site.pages[f"guide/{topic}.html"]
    assert page.find("div", class_="cell"), "no code to execute"


def cells():
    for path in sorted(DOCS.rglob("*.md")):
        if "_build" not in path.parts:
            for cell in re.findall(r"```\{code-cell\}.*?\n(.*?)```", path.read_text("utf-8"), re.S):
                yield path.relative_to(DOCS), cell


def test_every_plot_of_a_notebook_says_what_it_shows():
    plots = [(path, cell) for path, cell in cells() if re.search(r"\bplt\.|plot_spectra", cell)]
    assert plots
    for path, cell in plots:
        if "import matplotlib" not in cell or "subplots" in cell:
            assert re.search(r"image:\s+alt: *\S", cell), (path, cell)


def test_no_notebook_is_committed_with_outputs():
    assert not [path for path in DOCS.rglob("*.ipynb") if "_build" not in path.parts]
