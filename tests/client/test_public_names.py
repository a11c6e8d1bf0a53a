"""The public names: of the package, of each public class, and what `help()` shows of the options.

`public_names.toml` holds the list. After an intended change, write it with `python -m tests.client.test_public_names`.
"""

import inspect
import json
import tomllib
from pathlib import Path
from typing import Any

import tenure
from tenure import Reaper, Router, Tenure
from tenure.options import CallOptions, TaskSettings

LIST = Path(__file__).with_name("public_names.toml")


def names_of(thing: Any) -> list[str]:
    """Return the public names of an object that `dir()` shows."""
    names, left_out = set(dir(thing)), set[str]()
    if inspect.isclass(thing):
        # A dataclass has no attribute for a field without a default.
        names |= {name for item in inspect.getmro(thing) for name in inspect.get_annotations(item)}
        left_out |= set(getattr(thing, "_internal", ()))
        # The names of built-in bases differ between versions of Python.
        left_out |= {name for base in (Exception, str) if issubclass(thing, base) for name in dir(base)}
    return sorted(name for name in names - left_out if name[0] != "_")


def objects() -> dict[str, Any]:
    """Return an object of each class whose constructor sets attributes, by the name of the class."""
    app = Tenure("memory://")

    @app.task
    async def work() -> None: ...

    made = [app, work, app.declare(name="declared")(work.function), app.queue("mail"), app.job("id"), app.worker()]
    found = {type(job).__name__: job for job in (*made, app.jobs, app.dead, app.schedules, Router(), Reaper(app))}
    return {name.replace("AsyncTask", "Task"): item for name, item in found.items()}


def public_names() -> dict[str, list[str]]:
    """Return the public names of each public class."""
    known = objects()
    exported = {name: getattr(tenure, name) for name in tenure.__all__}
    return {
        name: names_of(known.get(name, value)) for name, value in sorted(exported.items()) if inspect.isclass(value)
    }


def text(names: dict[str, list[str]]) -> str:
    """Return the list as TOML."""
    lines = [f"{name} = {json.dumps(some)}" for name, some in names.items()]
    return "# The public names of each class of `tenure.__all__`; see test_public_names.py.\n" + "\n".join(lines) + "\n"


def test_each_public_class_has_the_listed_names() -> None:
    assert public_names() == tomllib.loads(LIST.read_text())


def test_a_star_import_brings_only_listed_names() -> None:
    namespace: dict[str, Any] = {}
    exec("from tenure import *", namespace)

    assert set(namespace) - {"__builtins__"} == set(tenure.__all__)
    assert sorted(tenure.__all__) == sorted(set(tenure.__all__))


def test_help_lists_the_options_of_a_task_and_a_call() -> None:
    app = Tenure("memory://")

    @app.task
    async def work() -> None: ...

    for function, options in ((app.task, TaskSettings), (app.declare, TaskSettings), (work.options, CallOptions)):
        signature = inspect.signature(function)
        assert set(options.__annotations__) <= set(signature.parameters)
        assert not any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in signature.parameters.values())
        assert "Options:\n\n- `" in (inspect.getdoc(function) or "")
        assert "Raises:" in (inspect.getdoc(function) or "")


if __name__ == "__main__":
    LIST.write_text(text(public_names()))
