"""Runs the Python blocks of the README and the docs: those of one page in order, as one program.

Code that a page needs and does not show stands in a comment: `<!-- python`, the code, `-->`. A block that cannot run
has `<!-- not run: REASON -->` in the line before it.
"""

import ast
import asyncio
import inspect
import logging
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent.parent

CHUNK = re.compile(
    r"^(?P<skip><!-- not run: \S[^\n]*-->\n)?```python\n(?P<shown>.*?)^```$|^<!-- python\n(?P<hidden>.*?)^-->$",
    re.MULTILINE | re.DOTALL,
)

MOST_NOT_RUN = 2
"""How many blocks of all pages may be left out."""


def pages() -> list[Path]:
    """Return the pages that hold Python blocks."""
    found = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")), *sorted((ROOT / "examples").rglob("*.md"))]
    return [path for path in found if "```python" in path.read_text()]


def run(code: str, *, page: Path, line: int, namespace: dict[str, Any], runner: asyncio.Runner) -> None:
    """Run a chunk of a page. It may use `await` outside of functions; then it runs in the page's event loop."""
    tree = ast.increment_lineno(ast.parse(code, page.name), line)
    compiled = compile(tree, str(page), "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    if not compiled.co_flags & inspect.CO_COROUTINE:
        exec(compiled, namespace)
        return

    async def awaited() -> None:
        await eval(compiled, namespace)

    runner.run(asyncio.wait_for(awaited(), 30))


@pytest.fixture
def without_stand_ins() -> Iterator[None]:
    """Remove from `sys.modules` the replacements for packages that a page adds there."""
    before = sys.modules.copy()
    yield
    found: dict[str, object] = dict(sys.modules)
    for name in [name for name, module in found.items() if not isinstance(module, ModuleType)]:
        del sys.modules[name]
        if name in before:
            sys.modules[name] = before[name]


@pytest.mark.thorough
@pytest.mark.usefixtures("without_stand_ins")
@pytest.mark.parametrize("page", pages(), ids=lambda page: str(page.relative_to(ROOT)))
def test_the_python_blocks_of_the_page_run(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("TENURE_URL", raising=False)
    monkeypatch.setenv("TENURE_HTTP_TOKEN", "0123456789abcdef0123456789abcdef")
    text = page.read_text()
    namespace: dict[str, Any] = {"__name__": "__main__"}
    with asyncio.Runner() as runner:
        for chunk in CHUNK.finditer(text):
            if chunk["skip"]:
                continue
            kind = "hidden" if chunk["hidden"] is not None else "shown"
            line = text.count("\n", 0, chunk.start(kind))
            run(chunk[kind], page=page, line=line, namespace=namespace, runner=runner)

    assert not [record.getMessage() for record in caplog.records if record.levelno > logging.WARNING]


def test_blocks_that_are_not_run_are_few_and_say_why() -> None:
    not_run = [f"{page.name}: {found}" for page in pages() for found in re.findall("<!-- not run.*", page.read_text())]

    assert len(not_run) <= MOST_NOT_RUN, not_run


def test_each_python_block_of_the_pages_is_found() -> None:
    for page in pages():
        text = page.read_text()
        assert len([chunk for chunk in CHUNK.finditer(text) if chunk["shown"] is not None]) == text.count("```python\n")
