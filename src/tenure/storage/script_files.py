"""Reads the packaged scripts of a storage: files of named statements, so that Python code contains no queries.

A statement begins at a line `-- name: <word>`. The text above the first such line is the file's head comment. A file
without such a line is one statement, named after the file. A part that begins at a line `-- fragment: <word>` stands in
each statement of the file that has a line `-- include: <word>`.
"""

import re
from collections.abc import Mapping
from functools import cache

_NAME = re.compile(r"^-- (name|fragment): (\w+)\s*$", re.MULTILINE)
_INCLUDE = re.compile(r"^-- include: (\w+)", re.MULTILINE)


@cache
def script(package: str, folder: str, file: str) -> str:
    """Return the text of a packaged file."""
    # Imported here, because it loads `tempfile`, which an app without a storage does not need.
    from importlib.resources import files

    return files(package).joinpath(folder, file).read_text(encoding="utf-8")


@cache
def statements(package: str, folder: str, file: str) -> Mapping[str, str]:
    """Return the named statements of a packaged file."""
    parts = _NAME.split(script(package, folder, file))
    if len(parts) == 1:
        return {file.partition(".")[0]: parts[0].strip()}
    named = [*zip(parts[1::3], parts[2::3], parts[3::3], strict=True)]
    fragments = {name: body.strip() for kind, name, body in named if kind == "fragment"}
    return {
        name: _INCLUDE.sub(lambda found: fragments[found[1]], body).strip()
        for kind, name, body in named
        if kind == "name"
    }
