"""The settings of the documentation site, which `make docs` builds with Sphinx."""

import os
import re
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx.addnodes import pending_xref
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.errors import ExtensionError
from sphinx.util.nodes import make_refnode

import tenure

DOCS = Path(__file__).parent
ROOT = DOCS.parent
SOURCE = "https://github.com/tenure-queue/tenure/blob/main"

project = "Tenure"
author = "The Tenure authors"
project_copyright = author
release = version = tenure.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx_click", "sphinx_copybutton"]
exclude_patterns = ["_build"]
default_role = "code"
suppress_warnings = ["app.add_node"]

myst_enable_extensions = ["colon_fence", "fieldlist"]
myst_heading_anchors = 4

autodoc_member_order = "bysource"
autodoc_preserve_defaults = True
autoclass_content = "class"
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 100

html_theme = "furo"
html_title = f"Tenure {release}"
html_copy_source = False
html_theme_options = {
    "source_repository": "https://github.com/tenure-queue/tenure/",
    "source_branch": "main",
    "source_directory": "docs/",
}

STANDARD = (
    "asyncio",
    "collections",
    "contextlib",
    "datetime",
    "enum",
    "logging",
    "pathlib",
    "random",
    "types",
    "typing",
)
"""Modules of the standard library whose names stand in signatures without a link: a link would need the network."""

UNLINKED = re.compile(r"(.*\.)?([A-Z]|R_co|Item)$|.*\[.*|_(Async)?GeneratorContextManager$")
"""Type variables, parts of annotations in quotes, and classes that the standard library does not name in public."""

INTERNAL = (
    "Scoreboard",  # in quotes in its signature
    "tenure.background_loop.",
    "tenure.client.",
    "tenure.clock.",
    "tenure.core.events.UnreadableEvent",
    "tenure.core.job.JobRecord",
    "tenure.core.job.NewJob",
    "tenure.core.job.Owner",
    "tenure.core.job.Policy",
    "tenure.core.job.Redriving",
    "tenure.core.job.StallTerms",
    "tenure.core.retention.",
    "tenure.core.retry.",
    "tenure.handlers.context.",
    "tenure.health.",
    "tenure.maintenance.",
    "tenure.options.tasks.CallOptions",
    "tenure.options.transactions.",
    "tenure.runtime.",
    "tenure.storage.protocol.",
    "tenure.worker.",
)
"""Names in signatures of public classes that users neither import nor make."""

LINK = re.compile(r"(\]\()(\.\./[^)\s#]+)(#[^)\s]*)?(\))")


def adapt(app: Sphinx, docname: str, source: list[str]) -> None:
    """Make a page that is written for the repository fit for the site.

    A link that leaves `docs/` becomes a link to the repository. A diagram becomes its text, because a renderer would be
    loaded from the network. The list of decisions gets their pages below it.
    """
    folder = (DOCS / docname).parent

    def absolute(found: re.Match[str]) -> str:
        path = Path(os.path.normpath(folder / found[2]))
        if path.is_relative_to(DOCS) or not path.exists():
            return found[0]
        return f"{found[1]}{SOURCE}/{path.relative_to(ROOT).as_posix()}{found[3] or ''}{found[4]}"

    source[0] = LINK.sub(absolute, source[0]).replace("```mermaid\n", "```text\n")
    if docname == "decisions/README":
        source[0] += "\n```{toctree}\n:hidden:\n:glob:\n\n0*\n```\n"


def link_to_public_name(
    app: Sphinx, env: BuildEnvironment, node: pending_xref, content: nodes.TextElement
) -> nodes.Node | None:
    """Link a class by the name that users import, wherever it is defined; leave names of Python itself unlinked."""
    if node.get("refdomain") != "py":
        return None
    target = str(node["reftarget"])
    name = target.rpartition(".")[2]
    if name in tenure.__all__:
        known = env.domains["py"].data["objects"].get(f"tenure.{name}")  # type: ignore[attr-defined]
        if known is not None:
            return make_refnode(app.builder, node["refdoc"], known.docname, known.node_id, content, name)
    if target.partition(".")[0] in STANDARD or UNLINKED.match(target) or target.startswith(INTERNAL):
        return content
    return None


def describe_errors(app: Sphinx, what: str, name: str, obj: object, options: object, lines: list[str]) -> None:
    """Turn the section `Raises:` of a docstring into the fields that Sphinx knows."""
    if "Raises:" not in lines:
        return
    start = lines.index("Raises:")
    fields: list[str] = []
    for line in lines[start + 1 :]:
        starts = re.match(r" {4}(\w+(?:, \w+)*): ", line)
        fields.append(f":raises {starts[1]}: {line[starts.end() :]}" if starts else line)
    lines[start:] = ["", *fields]


def shorten_unions(
    app: Sphinx, what: str, name: str, obj: object, options: object, signature: str, returned: str | None
) -> tuple[str, str | None]:
    """Show the union of all events as their base class; type checkers need the union, readers do not."""
    if returned is not None and "UnreadableEvent" in returned:
        returned = re.sub(r"\[.*\]", "[tenure.Event]", returned)
    return signature, returned


def check_that_the_reference_is_complete(app: Sphinx, env: BuildEnvironment) -> None:
    """Fail if a public name is missing in the reference.

    Raises:
        ExtensionError: it names what is missing.
    """
    described = env.domains["py"].data["objects"]  # type: ignore[attr-defined]
    missing = [name for name in tenure.__all__ if f"tenure.{name}" not in described and not name.startswith("_")]
    if missing:
        raise ExtensionError(f"docs/reference lacks these names of tenure.__all__: {', '.join(missing)}")


def setup(app: Sphinx) -> dict[str, Any]:
    """Connect the functions above to the build."""
    app.connect("source-read", adapt)
    app.connect("missing-reference", link_to_public_name)
    app.connect("autodoc-process-docstring", describe_errors)
    app.connect("autodoc-process-signature", shorten_unions)
    app.connect("env-check-consistency", check_that_the_reference_is_complete)
    return {"parallel_read_safe": True}
