"""Where an app is found by another process: the modules that make it what it is, and the name that it has in one.

Whatever adds to an app (tasks, middleware, routers) has a hold of it, so each module that does is loaded again, in the
order in which they were loaded here. The script that was started is loaded under another name than `__main__`, as
multiprocessing does it: what stands behind `if __name__ == "__main__":` does not happen there.
"""

import importlib
import os
import runpy
import sys
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from contextvars import ContextVar
from types import ModuleType

from msgspec import Struct

from tenure.errors import UsageError

_MAIN = "__main__"

_LOADED_MAIN = "__mp_main__"
"""What the script is called where it is loaded again; multiprocessing's word, which other libraries know."""

_LOADING: ContextVar[bool] = ContextVar("tenure_loading", default=False)


class Whereabouts(Struct, frozen=True):
    """Where an app is found. `script`: the file that `__main__` is; `started`: the module that it is, by `-m`.

    Paths and arguments are bytes, for they need not be text.
    """

    modules: tuple[str, ...]
    module: str
    attribute: str
    path: tuple[bytes, ...]
    arguments: tuple[bytes, ...]
    script: bytes | None = None
    started: str | None = None


def whereabouts(app: object, parts: Iterable[object]) -> Whereabouts | None:
    """Return where an app is found, with the modules of its parts (functions, most of them); None if nowhere.

    That is: in no module that another process could load, but only in a local variable, a notebook, a shell.
    """
    wanted = {name for part in parts if isinstance(name := getattr(part, "__module__", None), str)}
    names: list[str] = []
    found: tuple[str, str] | None = None
    for name, module in list(sys.modules.items()):
        if name == _LOADED_MAIN:
            # The same module as `__main__`, where a library has put it there.
            continue
        attribute = _attribute(module, app)
        if attribute is not None and found is None:
            found = name, attribute
        if attribute is not None or name in wanted:
            names.append(name)
    script, started = _main() if _MAIN in names else (None, None)
    if found is None or not wanted <= set(names) or (_MAIN in names and script is None and started is None):
        return None
    path, arguments = (tuple(map(os.fsencode, said)) for said in (sys.path, sys.argv))
    file = None if script is None else os.fsencode(script)
    return Whereabouts(tuple(names), *found, path, arguments, file, started)


def load(where: Whereabouts) -> object:
    """Return the app. Raises whatever loading its modules raises, or AttributeError."""
    sys.path[:] = map(os.fsdecode, where.path)
    sys.argv[:] = map(os.fsdecode, where.arguments)
    with _loading():
        for name in where.modules:
            if name == _MAIN:
                _load_main(where)
            else:
                importlib.import_module(name)
    return getattr(sys.modules[where.module], where.attribute)


def known_as(task: str) -> str:
    """Return what a task is called in the process that its app was found in."""
    return _MAIN + task.removeprefix(_LOADED_MAIN) if task.startswith(f"{_LOADED_MAIN}.") else task


def not_while_loading() -> None:
    """Make sure that no worker starts because the module that starts one is loaded for a process of its own.

    Raises:
        UsageError: that is what happens.
    """
    if _LOADING.get():
        raise UsageError(
            "this process loads the app to run one of its handlers, and the module starts a worker as it is loaded; "
            'let it do so behind if __name__ == "__main__":'
        )


def _attribute(module: ModuleType, app: object) -> str | None:
    # A module that is loaded at its first use must not be loaded by our looking at it.
    held = getattr(module, "__dict__", None)
    return next((name for name, value in list(held.items()) if value is app), None) if held else None


def _main() -> tuple[str | None, str | None]:
    """Return the file that `__main__` is, or the module, or neither: a shell, a notebook, `-c`."""
    main = sys.modules[_MAIN]
    spec, script = getattr(main, "__spec__", None), getattr(main, "__file__", None)
    if spec is not None:
        return None, spec.name
    return (os.path.abspath(script), None) if script is not None and os.path.exists(script) else (None, None)


def _load_main(where: Whereabouts) -> None:
    module = ModuleType(_LOADED_MAIN)
    if where.started is not None:
        held = runpy.run_module(where.started, run_name=_LOADED_MAIN, alter_sys=True)
    else:
        held = runpy.run_path(os.fsdecode(where.script or b""), run_name=_LOADED_MAIN)
    module.__dict__.update(held)
    sys.modules[_MAIN] = sys.modules[_LOADED_MAIN] = module


@contextmanager
def _loading() -> Generator[None]:
    token = _LOADING.set(True)
    try:
        yield
    finally:
        _LOADING.reset(token)
