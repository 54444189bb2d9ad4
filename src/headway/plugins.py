"""A user's own class or function, named on the command line: `module:Class`, `module:factory`, `file.py:factory`."""

import hashlib
import importlib
import importlib.util
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

from headway.errors import HeadwayError, unknown

Kind = TypeVar("Kind")


def load_class(name: str, kind: type[Kind]) -> type[Kind]:
    """The class `module:Class`, which must be a `kind`; modules in the current folder are found."""
    found = _load(name, "class", lambda value: isinstance(value, type))
    if not (isinstance(found, type) and issubclass(found, kind)):
        home = "headway" if kind.__name__ in sys.modules["headway"].__all__ else kind.__module__
        raise HeadwayError(f"{name!r} is no {kind.__name__}; derive it from {home}.{kind.__name__}")
    return found


def load_function(name: str) -> Callable[..., Any]:
    """The function `module:factory`."""
    found = _load(name, "function", callable)
    if not callable(found):
        raise HeadwayError(f"{name!r} cannot be called; name a function that returns what is to be studied")
    return found


def source_hash(found: object) -> str:
    """A hash of the file that holds a user's own class or function, whose results change when it does."""
    file = sys.modules[found.__module__].__file__
    return "" if file is None else hashlib.sha256(Path(file).read_bytes()).hexdigest()


def is_plugin(name: str) -> bool:
    """Whether a name is one of a user's own functions, and no folder."""
    home, colon, _ = name.partition(":")
    return bool(colon) and home != "pretrained" and not Path(name).exists()


@contextmanager
def at_home(plugin: str) -> Iterator[None]:
    """While a user's `file.py:factory` is used: its neighbours can be imported, and are forgotten afterwards, so that
    another file finds its own neighbours of the same names."""
    file = Path(plugin.partition(":")[0])
    if file.suffix != ".py":
        yield
        return
    before, folder = set(sys.modules), str(file.resolve().parent)
    sys.path.insert(0, folder)
    try:
        yield
    finally:
        own = [name for name in set(sys.modules) - before if _lies_in(sys.modules[name], folder)]
        sys.path.remove(folder)  # only now: of a package without a file, the places depend on it
        for name in own:
            del sys.modules[name]


def _lies_in(module: ModuleType, folder: str) -> bool:
    """Whether a module, or a package without a file of its own, is a neighbour and no installed library."""
    if module.__package__ == "headway" or module.__name__.startswith("headway."):
        return False
    places = map(str, [getattr(module, "__file__", None), *(getattr(module, "__path__", None) or ())])
    return any(place.startswith(folder + os.sep) and "site-packages" not in place for place in places)


def _load(name: str, what: str, fits: Callable[[Any], bool]) -> Any:
    module_name, _, attribute = name.partition(":")
    from_file = module_name.endswith(".py")
    if not from_file and not all(part.isidentifier() for part in module_name.split(".")):
        kind = "Class" if what == "class" else "factory"
        raise HeadwayError(f"{name!r} is no module:{kind}; write it like reversal:Reversal, or subject.py:build")
    if from_file and not Path(module_name).is_file():
        raise HeadwayError(f"there is no file {module_name!r}; name a file and a function in it, like subject.py:build")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        module = _of_file(Path(module_name)) if from_file else importlib.import_module(module_name)
    except (Exception, SystemExit) as error:  # whatever a user's file may raise
        said = f"{type(error).__name__}: {error}"
        way_out = "call it by itself to see where" if from_file else "run from the folder that holds it"
        raise HeadwayError(f"cannot import {module_name!r} of {name!r} ({said}); {way_out}") from error
    found = getattr(module, attribute, None)
    if found is None:
        raise unknown(f"{what} in {module_name}", attribute, [n for n, v in vars(module).items() if fits(v)])
    return found


def _of_file(path: Path) -> ModuleType:
    name = f"own_{hashlib.sha256(str(path.resolve()).encode()).hexdigest()[:12]}"  # of which there is no other
    spec = importlib.util.spec_from_file_location(name, path.resolve())
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} is no Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module
