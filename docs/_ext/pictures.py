"""Pictures made at build time: the directive `picture`, and the notebooks' plots."""

from __future__ import annotations

import hashlib
from importlib import import_module
from pathlib import Path

import svg
from docutils import nodes
from docutils.parsers.rst import directives
from matplotlib import rc_context
from sphinx.application import Sphinx
from sphinx.transforms.post_transforms import SphinxPostTransform
from sphinx.util import logging
from sphinx.util.docutils import SphinxDirective

log = logging.getLogger(__name__)
STYLE = Path(__file__).parents[1] / "_style" / "matplotlibrc"


class Picture(SphinxDirective):
    """What ``drawings.NAME.draw()`` draws, with a caption and a text that says what it shows."""

    required_arguments = 1
    has_content = True
    option_spec = {"alt": directives.unchanged_required}  # noqa: RUF012

    def run(self) -> list[nodes.Node]:
        if not self.options.get("alt", "").strip():
            raise self.error("a picture needs :alt:, a text that says what it shows")
        name = self.arguments[0]
        module = import_module(f"drawings.{name}")
        self.env.note_dependency(str(module.__file__))
        with rc_context(fname=STYLE):
            drawn = svg.of_figure(module.draw())
        figure = nodes.figure(classes=["picture", name])
        figure += nodes.raw("", svg.inline(drawn, self.options["alt"], name), format="html")
        if self.content:
            caption = nodes.caption()
            text = nodes.Element()
            self.state.nested_parse(self.content, self.content_offset, text)
            caption += [child for part in text.children for child in part.children]
            figure += caption
        return [figure]


class PlotsInside(SphinxPostTransform):
    """A notebook's plot as a part of the page, not as a file of its own."""

    default_priority = 5  # before the images are looked for by the writer
    formats = ("html",)

    def run(self, **kwargs: object) -> None:
        for image in list(self.document.findall(nodes.image)):
            uri = image["uri"]
            if "jupyter_execute" not in uri:
                continue
            if not image.get("alt"):
                log.warning("a plot has no mystnb.image.alt", location=image)
            path = Path(self.env.srcdir) / uri.lstrip("/")
            if path.suffix == ".svg":
                name = "plot-" + hashlib.sha256(uri.encode()).hexdigest()[:8]
                text = svg.inline(path.read_text("utf-8"), image.get("alt", ""), name)
                image.replace_self(nodes.raw("", text, format="html"))


def setup(app: Sphinx) -> dict[str, bool]:
    app.add_directive("picture", Picture)
    app.add_post_transform(PlotsInside)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
