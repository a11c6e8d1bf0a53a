"""Loads an app named as `module:attr`; each mistake gives a one-line error with the remedy."""

import importlib
import os
import sys
import traceback
from pathlib import Path
from types import ModuleType

import tenure
from tenure.app import Tenure
from tenure.errors import UsageError

_HOUSE = str(Path(tenure.__file__).parent)


def load(target: str) -> Tenure:
    """Return the app named `module:attr`; without an attribute, the first app of the module.

    Raises:
        UsageError: the module or the attribute does not exist, is not an app, or the module fails to load.
    """
    name, colon, attribute = target.partition(":")
    if not name or name != name.strip() or "/" in name or name.endswith(".py") or (colon and not attribute):
        raise UsageError(f"{target!r} names no app; write it as module:attribute, such as tasks:app or shop.tasks:app")
    module = _imported(name, target)
    if not colon:
        return _first(module)
    found: object = module
    for part in attribute.split("."):
        if not hasattr(found, part):
            raise UsageError(f"{target!r}: module {name!r} has no {attribute!r}; {_remedy(module)}")
        found = getattr(found, part)
    if not isinstance(found, Tenure):
        raise UsageError(f"{target!r} is of type {type(found).__name__}, not Tenure; {_remedy(module)}")
    return found


def _imported(name: str, target: str) -> ModuleType:
    try:
        here = os.getcwd()
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
                f"{target!r}: module {error.name!r} does not exist; run this in its directory (now {here}), or put "
                "that directory on PYTHONPATH"
            ) from error
        raise _failed(name, error) from error
    except (Exception, SystemExit) as error:
        raise _failed(name, error) from error


def _failed(name: str, error: BaseException) -> UsageError:
    last = " ".join(traceback.format_exception_only(error)[-1].split())
    return UsageError(
        f"module {name!r} fails to load: {last}{_where(error)}; fix it, or import it to see the traceback"
    )


def _where(error: BaseException) -> str:
    """Return the place in the user's own code that the error comes from, or an empty text."""
    if isinstance(error, SyntaxError):
        return f" ({error.filename}, line {error.lineno})"
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not _foreign(frame.filename)]
    return f" ({frames[-1].filename}, line {frames[-1].lineno})" if frames else ""


def _foreign(filename: str) -> bool:
    return filename.startswith(("<frozen", _HOUSE)) or filename == importlib.__file__


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
