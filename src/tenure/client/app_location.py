"""Finds an app from another process: by the modules that define it, and its name in one of them.

Every module that adds tasks, middleware or routers to an app has a reference to it. So each module with a reference is
loaded again, in the order of loading here. The started script is loaded under another name than `__main__`, as
multiprocessing does it, so its code after `if __name__ == "__main__":` does not run.
"""

import importlib
import inspect
import os
import runpy
import sys
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from contextvars import ContextVar
from types import ModuleType
from typing import Any

from msgspec import Struct

from tenure.errors import UsageError
from tenure.handlers.functions import unwrapped

_MAIN = "__main__"

_LOADED_MAIN = "__mp_main__"
"""The name of the script's module when it is loaded again; multiprocessing's name, which other libraries know."""

_SCRIPTS = (_MAIN, _LOADED_MAIN)

_LOADING: ContextVar[bool] = ContextVar("tenure_loading", default=False)


class AppLocation(Struct, frozen=True):
    """The location of an app. `script`: the file of `__main__`; `started`: its module, if it was started with `-m`.

    `url`: the storage that the app uses in place of its own, or None. Paths and arguments are bytes because they may
    not be valid text.
    """

    modules: tuple[str, ...]
    module: str
    attribute: str
    path: tuple[bytes, ...]
    arguments: tuple[bytes, ...]
    script: bytes | None = None
    started: str | None = None
    url: str | None = None


def locate_app(app: object, parts: Iterable[object], *, url: str | None = None) -> AppLocation | None:
    """Return the location of an app, with the modules of its parts, mostly functions.

    Return None if another process cannot load the app from a module: it is in a local variable, a notebook or a shell.
    """
    module_names = {name for part in parts if isinstance(name := getattr(part, "__module__", None), str)}
    names: list[str] = []
    found: tuple[str, str] | None = None
    for name, module in list(sys.modules.items()):
        if name == _LOADED_MAIN:
            # The same module as `__main__`, if a library has registered it under this name.
            continue
        attribute = _attribute(module, app)
        if attribute is not None and found is None:
            found = name, attribute
        if attribute is not None or name in module_names:
            names.append(name)
    script, started = _main() if _MAIN in names else (None, None)
    if found is None or not module_names <= set(names) or (_MAIN in names and script is None and started is None):
        return None
    path, arguments = (tuple(map(os.fsencode, text)) for text in (sys.path, sys.argv))
    file = None if script is None else os.fsencode(script)
    return AppLocation(tuple(names), *found, path, arguments, file, started, url)


def load(location: AppLocation) -> object:
    """Load the app and return it. Raise AttributeError if its name is missing, or the exception of a module."""
    sys.path[:] = map(os.fsdecode, location.path)
    sys.argv[:] = map(os.fsdecode, location.arguments)
    with _loading():
        for name in location.modules:
            if name == _MAIN:
                _load_main(location)
            else:
                importlib.import_module(name)
    app: Any = getattr(sys.modules[location.module], location.attribute)
    if location.url is not None:
        app.use_url(location.url)
    return app


def refuse_unreachable(function: object, owner: object) -> None:
    """Check that a process that imports the modules of an app or a router gets this task of it, too.

    A function within a function is such a task if it is defined while a module is imported. If a module already holds
    the app, and a later call adds the function, other processes never learn of it: its jobs would wait there forever.

    Raises:
        UsageError: other processes do not get the task.
    """
    body = unwrapped(inspect.unwrap(function)) if callable(function) else function
    if not inspect.isfunction(body) or "<locals>" not in body.__qualname__ or body.__module__ in _SCRIPTS:
        return
    if not any(value is owner for value in list(body.__globals__.values())) or _importing():
        return
    raise UsageError(
        f"{body.__module__}.{body.__qualname__} is defined within a function, after {body.__module__} was imported: no "
        "other worker process gets this task, and its jobs would wait there; define it at the top level of a module"
    )


def known_as(task: str) -> str:
    """Return the name that a task has in the process where its app was located."""
    return _MAIN + task.removeprefix(_LOADED_MAIN) if task.startswith(f"{_LOADED_MAIN}.") else task


def not_while_loading() -> None:
    """Check that no worker starts while a child process loads the app's modules.

    Raises:
        UsageError: the modules are being loaded.
    """
    if _LOADING.get():
        raise UsageError(
            "this process loads the app to run one of its handlers, and the module starts a worker as it is loaded; "
            'start it below if __name__ == "__main__":'
        )


def _importing() -> bool:
    """Return True if the caller runs because a module is being imported; a started script does not count."""
    frame = inspect.currentframe()
    while frame is not None:
        name = frame.f_globals.get("__name__")
        if frame.f_code.co_name == "<module>" and name not in _SCRIPTS and name in sys.modules:
            return True
        frame = frame.f_back
    return False


def _attribute(module: ModuleType, app: object) -> str | None:
    # Read __dict__ only: attribute access would load a lazy module.
    namespace = getattr(module, "__dict__", None)
    return next((name for name, value in list(namespace.items()) if value is app), None) if namespace else None


def _main() -> tuple[str | None, str | None]:
    """Return the file of `__main__`, or its module name, or neither for a shell, a notebook or `-c`."""
    main = sys.modules[_MAIN]
    spec, script = getattr(main, "__spec__", None), getattr(main, "__file__", None)
    if spec is not None:
        return None, spec.name
    return (os.path.abspath(script), None) if script is not None and os.path.exists(script) else (None, None)


def _load_main(location: AppLocation) -> None:
    module = ModuleType(_LOADED_MAIN)
    if location.started is not None:
        namespace = runpy.run_module(location.started, run_name=_LOADED_MAIN, alter_sys=True)
    else:
        namespace = runpy.run_path(os.fsdecode(location.script or b""), run_name=_LOADED_MAIN)
    module.__dict__.update(namespace)
    sys.modules[_MAIN] = sys.modules[_LOADED_MAIN] = module


@contextmanager
def _loading() -> Generator[None]:
    token = _LOADING.set(True)
    try:
        yield
    finally:
        _LOADING.reset(token)
