"""The documentation builds without a warning, and is whole: pictures, links, names, commands."""

import ast
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
    *("pooling", "pretrained", "channels", "sequences", "upsampling", "dimensions", "mpca"),
    *("autoencoder", "looking", "orthogonal", "deployment", "keras", "gpus", "distributed"),
    *("paper", "own_study"),
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
            if parts.scheme:
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


KERAS = Path(tp.__file__).parent / "keras"


def keras_names():
    """Read, not imported: Keras is tested in processes of its own."""
    for node in ast.parse((KERAS / "__init__.py").read_text("utf-8")).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return ast.literal_eval(node.value)
    raise AssertionError("tensorprojection.keras has no __all__")


def public_names():
    """Names with their docstrings."""
    studies = pytest.importorskip("tensorprojection.studies")
    for module in (tp, tp.functional, tp.penalties, studies):
        for name in [*module.__all__, *(["MPCA"] if module is tp else [])]:
            found = getattr(module, name)
            own = vars(found).get("__doc__") if inspect.isclass(found) else found.__doc__
            yield f"{module.__name__}.{name}", own, inspect.ismodule(found)
    docstrings = {
        node.name: ast.get_docstring(node)
        for path in KERAS.glob("*.py")
        for node in ast.parse(path.read_text("utf-8")).body
        if isinstance(node, ast.ClassDef | ast.FunctionDef)
    }
    for name in keras_names():
        yield f"tensorprojection.keras.{name}", docstrings[name], False


def test_every_public_name_is_on_a_page(site):
    documented = set().union(*(site.ids(name) for name in site.pages if "reference/" in name))
    names = {name for name, _, is_module in public_names() if not is_module}
    assert {"tensorprojection.TensorProjection", "tensorprojection.keras.to_torch"} <= names
    assert names - documented == set()


def test_every_public_name_has_an_example():
    without = [name for name, docstring, _ in public_names() if ">>>" not in (docstring or "")]
    assert without == []


def test_every_command_is_on_a_page(site):
    main = pytest.importorskip("tensorprojection.cli.main")

    def words(app, path=("tpl",)):
        for name in app:
            if not name.startswith("-"):
                yield "-".join((*path, name))
                yield from words(app[name], (*path, name))

    commands = {*words(main.command_line([]))}
    assert {"tpl-run", "tpl-data-check"} <= commands
    assert commands - site.ids("reference/commands.html") == set()
    text = site.pages["reference/commands.html"].get_text()
    assert "tpl run [OPTIONS] STUDY" in text
    assert "tpl data check [OPTIONS] PATH" in text
    assert "tpl cache [OPTIONS]" in text
    assert "Table of Contents" not in text
    assert "--train-share" in text  # a flag that comes from a study's settings
    assert "--clear" in text


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
    for page in site.pages.values():
        assert not [tag for tag in page.find_all("script") if "math" in str(tag).lower()]


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


def code_lines():
    """Lines of code cells and of indented blocks, with the page."""
    for path, cell in cells():
        yield from ((path, line) for line in cell.splitlines())
    for path in sorted(DOCS.rglob("*.md")):
        if "_build" not in path.parts:
            text = re.sub(r"```.*?```", "", path.read_text("utf-8"), flags=re.S)
            for block in re.findall(r"(?<=\n\n)(?: {4}.*\n)+", text):
                yield from ((path, line[4:]) for line in block.splitlines())


def test_no_code_is_cut_off_at_the_right():
    lines = list(code_lines())
    assert len(lines) > 500
    assert [(path, line) for path, line in lines if len(line) > 96 and "alt: " not in line] == []
