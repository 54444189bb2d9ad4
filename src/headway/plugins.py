"""Loads a user's class or function from its name: `module:Class`, `module:factory`, `file.py:factory`."""

import ast
import hashlib
import importlib
import importlib.util
import os
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

from headway.errors import HeadwayError, unknown

Kind = TypeVar("Kind")


def load_class(name: str, kind: type[Kind]) -> type[Kind]:
    """Loads the class `module:Class`, which must derive from `kind`; modules in the current folder are found."""
    found = _load(name, "class", lambda value: isinstance(value, type))
    if not (isinstance(found, type) and issubclass(found, kind)):
        home = "headway" if kind.__name__ in sys.modules["headway"].__all__ else kind.__module__
        raise HeadwayError(f"{name!r} is not a {kind.__name__}; derive it from {home}.{kind.__name__}")
    return found


def load_function(name: str) -> Callable[..., Any]:
    """Loads the function `module:factory`."""
    found = _load(name, "function", callable)
    if not callable(found):
        raise HeadwayError(f"{name!r} is not callable; name a function")
    return found


def source_hash(found: object) -> str:
    """Hashes the code of the file that defines a user's class or function: when it changes, so may the results.
    Comments and layout do not count."""
    file = sys.modules[found.__module__].__file__
    if file is None:
        return ""
    try:
        code = ast.dump(ast.parse(Path(file).read_bytes())).encode()
    except (SyntaxError, ValueError):  # compiled, or edited since it was imported
        code = Path(file).read_bytes()
    return hashlib.sha256(code).hexdigest()


def is_plugin(name: str) -> bool:
    """Tells whether a name is a user's function, and not a folder."""
    home, colon, _ = name.partition(":")
    return bool(colon) and home != "pretrained" and not Path(name).exists()


@contextmanager
def import_neighbours(plugin: str) -> Iterator[None]:
    """Lets a user's `file.py:factory` import the modules beside it, and unloads them afterwards, so that another file
    finds its own neighbours of the same names. A link has the neighbours of the link, then those of its target."""
    file = Path(plugin.partition(":")[0])
    if file.suffix != ".py":
        yield
        return
    beside = [str(file.parent.resolve()), str(file.resolve().parent)]
    modules, path, folders = set(sys.modules), list(sys.path), list(dict.fromkeys(beside))
    sys.path[:0] = folders
    try:
        yield
    finally:
        new = set(sys.modules) - modules
        loaded = [name for name in new if any(_is_in(sys.modules[name], folder) for folder in folders)]
        sys.path[:] = path  # only now: a namespace package's __path__ depends on it
        for name in loaded:
            del sys.modules[name]


@contextmanager
def working_folder(folder: Path) -> Iterator[None]:
    """Runs in a folder, where relative paths then start."""
    before = os.getcwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)


def _is_in(module: ModuleType, folder: str) -> bool:
    """Tells whether a module or namespace package lies in a folder and is not an installed library."""
    if module.__package__ == "headway" or module.__name__.startswith("headway."):
        return False
    places = map(str, [getattr(module, "__file__", None), *(getattr(module, "__path__", None) or ())])
    return any(place.startswith(folder + os.sep) and "site-packages" not in place for place in places)


def _load(name: str, what: str, fits: Callable[[Any], bool]) -> Any:
    module_name, _, attribute = name.partition(":")
    from_file = module_name.endswith(".py")
    if not from_file and not all(part.isidentifier() for part in module_name.split(".")):
        kind = "Class" if what == "class" else "factory"
        raise HeadwayError(f"{name!r} is not module:{kind}; write it like reversal:Reversal, or subject.py:build")
    if from_file and not Path(module_name).is_file():
        raise HeadwayError(f"there is no file {module_name!r}; name a file and a function in it, like subject.py:build")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        module = _import_file(Path(module_name)) if from_file else importlib.import_module(module_name)
    except (Exception, SystemExit) as error:  # a user's file may raise anything
        cause = f"{type(error).__name__}: {error}"
        remedy = "run it by itself to see the traceback" if from_file else "run from the folder that holds it"
        if from_file and isinstance(error, ModuleNotFoundError):
            remedy = _find_missing_import(Path(module_name), error) or remedy
        raise HeadwayError(f"cannot import {module_name!r} of {name!r} ({cause}); {remedy}") from error
    found = getattr(module, attribute, None)
    if found is None:
        raise unknown(f"{what} in {module_name}", attribute, [n for n, v in vars(module).items() if fits(v)])
    return found


def _find_missing_import(path: Path, error: ModuleNotFoundError) -> str | None:
    """Says which line of a user's file imports a missing module, and what to do; None where another file does."""
    frames = traceback.extract_tb(error.__traceback__)
    lines = [frame.lineno for frame in frames if frame.filename == str(path.resolve())]
    if not lines or error.name is None or not frames[-1].filename.startswith(("<frozen", str(path.resolve()))):
        return None
    name = error.name.partition(".")[0]
    line = f"in line {lines[-1]} of {path}"
    return f"{line} write the name of your own module instead of {name!r}, or put {name}.py beside it"


def _import_file(path: Path) -> ModuleType:
    name = f"own_{hashlib.sha256(str(path.resolve()).encode()).hexdigest()[:12]}"  # unique to this path
    spec = importlib.util.spec_from_file_location(name, path.resolve())
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module
