"""How Sphinx builds the documentation. `make docs` treats warnings as errors."""

import re
from importlib import metadata

project = "ovsdk"
version = release = metadata.version("ovsdk")
author = copyright = "the ovsdk authors"
extensions = ["myst_parser", "sphinx.ext.autodoc"]
exclude_patterns = ["_build"]
html_theme = "furo"
html_title = f"ovsdk {release}"
myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 3
default_role = "literal"  # docstrings mark code with one backtick
autodoc_member_order = "bysource"
autodoc_typehints_format = "short"


def list_columns(_app, _what, _name, _object, _options, lines):
    """A docstring's lines of `name   meaning` become a list, which HTML does not run together."""
    lines[:] = [re.sub(r"^(\w+) {2,}(?=\S)", r"- **\1**: ", line) for line in lines]


def setup(app):
    app.connect("autodoc-process-docstring", list_columns)
