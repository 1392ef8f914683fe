"""hack/images as a module: a program without a suffix, which cannot be imported by its name."""

import sys
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType


def load_images() -> ModuleType:
    """Return the program, which does nothing unless it is called."""
    program = Path(__file__).resolve().parents[2] / "hack/images"
    loader = SourceFileLoader("hack_images", str(program))
    module = module_from_spec(spec_from_file_location(loader.name, loader.path, loader=loader))  # type: ignore[arg-type]  # it has a loader
    sys.modules[loader.name] = module  # for its dataclasses
    loader.exec_module(module)
    return module
