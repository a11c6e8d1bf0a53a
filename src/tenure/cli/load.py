"""Loads an app named as `module:attr`; each mistake gives a one-line error with the remedy."""

import importlib
import os
import sys
import sysconfig
import traceback
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import click

import tenure
from tenure.app import Tenure
from tenure.cli.exits import LoadError
from tenure.core.suggestion import close_to, did_you_mean
from tenure.errors import UsageError

_HOUSE = str(Path(tenure.__file__).parent)

_LOADERS = (_HOUSE, str(Path(click.__file__).parent), str(Path(importlib.__file__).parent), "<frozen")
"""Where the frames that lead to the user's module come from."""

_INSTALLED = tuple({sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")})
"""The folders of the standard library and of installed packages."""

_SEARCHED = 200
"""How many entries of the working directory are searched for a module that is not found."""


def load(target: str, *, folder: Path | None = None) -> Tenure:
    """Return the app named `module:attr`; without an attribute, the first app of the module.

    `folder`: where the module is; by default the working directory.

    Raises:
        LoadError: the module fails to load.
        UsageError: the module or the attribute does not exist, or is not an app.
    """
    name, colon, attribute = target.partition(":")
    if not name or name != name.strip() or "/" in name or name.endswith(".py") or (colon and not attribute):
        raise UsageError(f"{target!r} names no app; write it as module:attribute, such as tasks:app or shop.tasks:app")
    module = _imported(name, target, folder)
    if not colon:
        return _first(module)
    found: object = module
    for part in attribute.split("."):
        if not hasattr(found, part):
            meant = did_you_mean(attribute, _apps(module))
            remedy = f" I{_remedy(module)[1:]}" if meant else f"; {_remedy(module)}"
            raise UsageError(f"{target!r}: module {name!r} has no {attribute!r}{meant}{remedy}")
        found = getattr(found, part)
    if not isinstance(found, Tenure):
        raise UsageError(f"{target!r} is of type {type(found).__name__}, not Tenure; {_remedy(module)}")
    return found


def _imported(name: str, target: str, folder: Path | None) -> ModuleType:
    try:
        here = os.getcwd() if folder is None else str(folder.absolute())
    except FileNotFoundError:
        raise UsageError(f"{target!r}: the working directory was deleted; change to one that exists") from None
    if here not in sys.path:
        # `python -m` adds the working directory to the path, an installed script does not.
        sys.path.insert(0, here)
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and f"{name}.".startswith(f"{error.name}."):
            raise UsageError(
                f"{target!r}: module {error.name!r} does not exist{_place_of(name, Path(here))}"
            ) from error
        raise _failed(name, error) from error
    except (Exception, SystemExit) as error:
        raise _failed(name, error) from error


def _place_of(name: str, here: Path) -> str:
    """Return the end of a message: where a missing module may be found."""
    for folder in _folders(here):
        # The module of a package, named without the package.
        if (folder / "__init__.py").exists() and _has(folder, name):
            return f" in {here}; did you mean '{folder.name}.{name}'?"
    for folder in (here.parent, *_folders(here)):
        if _has(folder, name):
            return f" in {here}; it is in {folder}: give --app-dir {os.path.relpath(folder, here)}, or run this there"
    modules = [path.stem for path in _entries(here) if path.suffix == ".py" or (path / "__init__.py").exists()]
    remedy = f"run this in its directory (now {here}), name that with --app-dir, or put it on PYTHONPATH"
    meant = close_to(name, modules)
    return f"; did you mean {meant[0]!r}? Else {remedy}" if meant else f"; {remedy}"


def _has(folder: Path, name: str) -> bool:
    path = folder.joinpath(*name.split("."))
    return path.with_name(f"{path.name}.py").exists() or (path / "__init__.py").exists()


def _folders(here: Path) -> Iterator[Path]:
    return (path for path in _entries(here) if path.is_dir() and not path.name.startswith("."))


def _entries(here: Path) -> list[Path]:
    try:
        return sorted(here.iterdir())[:_SEARCHED]
    except OSError:
        return []


def _failed(name: str, error: BaseException) -> LoadError:
    last = " ".join(traceback.format_exception_only(error)[-1].split())
    return LoadError(f"module {name!r} fails to load: {last}{_where(error)}; fix it", _trace(error))


def _where(error: BaseException) -> str:
    """Return the place in the user's own code that the error comes from, or an empty text."""
    if isinstance(error, SyntaxError):
        return f" ({error.filename}, line {error.lineno})"
    frames = _of_user(traceback.extract_tb(error.__traceback__))
    return f" ({frames[-1].filename}, line {frames[-1].lineno})" if frames else ""


def _trace(error: BaseException) -> str:
    """Return the traceback of an exception and its causes, with the user's frames only."""
    whole = traceback.TracebackException.from_exception(error)
    part: traceback.TracebackException | None = whole
    while part is not None:
        part.stack = traceback.StackSummary.from_list(_of_user(part.stack))
        part = part.__cause__ or part.__context__
    return "".join(whole.format())


def _of_user(frames: traceback.StackSummary) -> list[traceback.FrameSummary]:
    """Return the frames of the user's own code; of an app that is installed as a package, those of all packages."""
    others = [frame for frame in frames if not frame.filename.startswith(_LOADERS)]
    return [frame for frame in others if not frame.filename.startswith(_INSTALLED)] or others


def _apps(module: ModuleType) -> dict[str, Tenure]:
    return {name: value for name, value in vars(module).items() if isinstance(value, Tenure)}


def _first(module: ModuleType) -> Tenure:
    apps = _apps(module)
    if not apps:
        raise UsageError(f"module {module.__name__!r} contains no Tenure app; {_remedy(module)}")
    return next(iter(apps.values()))


def _remedy(module: ModuleType) -> str:
    names = ", ".join(f"{module.__name__}:{name}" for name in _apps(module))
    return f"it has {names}" if names else f"make one there: app = Tenure(), then use {module.__name__}:app"
