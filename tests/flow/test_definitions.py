"""Functions that cannot be tasks are refused when they are defined: methods, and functions of one process only."""

import functools
import importlib
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from textwrap import dedent
from types import ModuleType
from typing import Any, cast

import pytest

from tenure import Router, Tenure, UsageError


class Mailer:
    def __init__(self, host: str = "localhost") -> None:
        self.host = host

    async def send(self, to: str) -> str:
        return f"{to} by {self.host}"

    @classmethod
    async def make(cls, to: str) -> str:
        return to

    @staticmethod
    async def plain(to: str) -> str:
        return to

    async def __call__(self, to: str) -> str:
        return to


@pytest.mark.parametrize("owner", [Tenure("memory://"), Router()], ids=["app", "router"])
@pytest.mark.parametrize("function", [Mailer.send, Mailer.__dict__["make"]], ids=["method", "classmethod"])
def test_a_method_is_refused_with_the_remedy(owner: Tenure | Router, function: Any) -> None:
    for decorator in (owner.task, owner.task(name="named"), owner.every("1s"), owner.declare):
        with pytest.raises(UsageError, match=r"is a method, so it cannot be a task: .* make it a function") as raised:
            cast(Any, decorator)(function)
        assert "Mailer." in str(raised.value)


def test_a_method_in_a_class_body_is_refused_as_the_class_is_created() -> None:
    app = Tenure("memory://")
    with pytest.raises(UsageError, match="is a method"):

        class Jobs:  # pyright: ignore[reportUnusedClass]
            @app.task
            async def send(self, to: str) -> None: ...

    assert not app.tasks


@pytest.mark.parametrize(
    "function",
    [Mailer().send, Mailer.make, Mailer.plain, Mailer.__dict__["plain"], Mailer(), functools.partial(Mailer().send)],
    ids=["bound method", "bound classmethod", "staticmethod", "raw staticmethod", "object", "partial"],
)
async def test_what_a_module_creates_during_its_import_can_be_a_task(function: Callable[..., Any]) -> None:
    app = Tenure("memory://")
    task = app.task(function)
    async with app, app.worker():
        assert (await task.enqueue_and_wait("a")).startswith("a")


MODULE = """
    from tenure import Router, Tenure

    app = Tenure({url!r})
    router = Router(prefix="routed.")
    app.include(router)

    def add(owner, **options):
        @owner.task(**options)
        async def work() -> None: ...

        return work

    def add_to_own():
        own = Tenure({url!r})
        add(own)
        return own

    add(app, name="at import")
    add(router, name="at import")
"""


def module(folder: Path, monkeypatch: pytest.MonkeyPatch, *, url: str, more: str = "") -> ModuleType:
    """Import a module that holds an app, and return it."""
    name = f"definitions_{url.partition(':')[0]}"
    (folder / f"{name}.py").write_text(dedent(MODULE.format(url=url)) + dedent(more))
    cast(Any, monkeypatch).syspath_prepend(str(folder))
    monkeypatch.delitem(sys.modules, name, raising=False)
    return importlib.import_module(name)


def test_a_nested_function_is_refused_after_the_import(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = module(tmp_path, monkeypatch, url="sqlite:///queue.db")

    assert sorted(made.app.tasks) == ["at import", "routed.at import"]
    for owner in (made.app, made.router):
        for options in ({}, {"name": "late"}):
            with pytest.raises(
                UsageError, match=r"defined within a function, after .* was imported: no other worker"
            ) as error:
                made.add(owner, **options)
            assert "add.<locals>.work" in str(error.value)
            assert "define it at the top level of a module" in str(error.value)
    assert sorted(made.app.tasks) == ["at import", "routed.at import"]


def test_a_scheduled_nested_function_is_refused_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    more = """
        def schedule():
            @app.every("1s")
            async def tick() -> None: ...
    """
    made = module(tmp_path, monkeypatch, url="sqlite:///queue.db", more=more)

    with pytest.raises(UsageError, match="defined within a function"):
        made.schedule()


def test_a_nested_function_of_an_app_that_no_module_holds_is_accepted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = module(tmp_path, monkeypatch, url="sqlite:///queue.db")

    assert len(made.add_to_own().tasks) == 1
    assert len(Tenure("sqlite:///queue.db").tasks) == 0


def test_a_nested_function_on_the_memory_storage_is_accepted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = module(tmp_path, monkeypatch, url="memory://")
    made.add(made.app, name="late")

    assert "late" in made.app.tasks


def test_a_script_may_define_its_tasks_in_a_function(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(dedent(MODULE.format(url="sqlite:///queue.db")) + "\nadd(app)\nprint(len(app.tasks))\n")
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, cwd=tmp_path)

    assert (done.stdout, done.returncode) == ("3\n", 0), done.stderr
