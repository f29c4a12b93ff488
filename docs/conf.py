"""The documentation's settings: `make docs` builds it."""

import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parent / "src"), str(HERE / "_ext")]  # of this clone, not of another

import kernel  # noqa: E402

import tensorprojection  # noqa: E402

kernel.prepare(HERE.parent)

project = "tensorprojection"
author = "The tensorprojection developers"
copyright = author  # noqa: A001
version = release = tensorprojection.__version__

extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "mathml",  # these are in _ext
    "pictures",
    "commands",
]
exclude_patterns = ["_build", "_ext", "_style", "results/*"]  # not results.md: folders of runs
nitpicky = False

html_theme = "furo"
html_title = "tensorprojection"
html_theme_options = {
    "source_repository": "https://github.com/tensorprojection/tensorprojection/",
    "source_branch": "main",
    "source_directory": "docs/",
}
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_sphinx = False
pygments_style = "a11y-high-contrast-light"
pygments_dark_style = "a11y-high-contrast-dark"

myst_enable_extensions = ["dollarmath", "amsmath", "colon_fence", "attrs_block", "attrs_inline"]
myst_heading_anchors = 3
myst_dmath_double_inline = True
myst_update_mathjax = False  # formulas are MathML

nb_execution_mode = "force"
nb_execution_timeout = 1800  # of a cell; a busy machine is many times slower
nb_execution_raise_on_error = True
nb_merge_streams = True
nb_number_source_lines = False

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_use_rtype = False
napoleon_use_ivar = True
