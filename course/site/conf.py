"""Sphinx' configuration. ``course.site.build`` calls Sphinx with it."""

from typing import Any

from labkit.version import VERSION

project = "labkit"
copyright = "labkit's authors, Apache-2.0"
version = release = VERSION
language = "en"

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
myst_heading_anchors = 4  # the documents link to headings, as on GitHub
highlight_language = "none"  # blocks without a language are commands and outputs
pygments_style = "friendly"

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_default_options: dict[str, Any] = {"members": True}
napoleon_numpy_docstring = False

html_theme = "furo"
html_title = "labkit"
templates_path = ["templates"]
html_static_path = ["static"]
html_css_files = ["course.css"]
html_copy_source = False
html_show_sourcelink = False
html_show_sphinx = False
html_domain_indices = False
html_use_index = False
