"""Compiles real libraries with an operator of their own, good and bad ones."""

import hashlib
import subprocess
from pathlib import Path
from typing import Literal

from enginewright_contract.task import Extension
from onnx import ModelProto, helper

from tests.support.broken_models import build, value

SOURCE = Path(__file__).with_name("custom_operator.c")
THROWING_SOURCE = Path(__file__).with_name("throwing.cpp")
PLUGIN_SOURCE = Path(__file__).with_name("plugin.cpp")
CUBE = ("my.ops", "Cube")


def compile_c(library: Path, source: str, *options: str) -> str:
    """Compile a shared library from C, such as a stand-in for one of NVIDIA's; return its path."""
    library.parent.mkdir(parents=True, exist_ok=True)
    command = ["gcc", "-shared", "-fPIC", *options, "-o", str(library), "-xc", "-"]
    subprocess.run(command, input=source, text=True, check=True, timeout=60)
    return str(library)


def compile_library(folder: Path, *defined: str) -> Path:
    """Compile the operator with the macros `defined`; return the library in `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "library.so"
    command = ["gcc", "-shared", "-fPIC", "-O1", "-o", str(path), str(SOURCE)]
    subprocess.run([*command, *(f"-D{item}" for item in defined)], check=True, timeout=60)
    return place(path, folder)


def compile_failing(folder: Path, switch: str) -> Path:
    """Compile the operator so that every run throws the text of the file `switch` while it exists."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "library.so"
    command = ["g++", "-shared", "-fPIC", "-O1", "-fexceptions", f'-DFAILS_IF="{switch}"']
    sources = ["-x", "c", str(SOURCE), "-x", "c++", str(THROWING_SOURCE)]
    subprocess.run([*command, "-o", str(path), *sources], check=True, timeout=60)
    return place(path, folder)


def compile_plugin(folder: Path) -> Path:
    """Compile a library with a plug-in of TensorRT that is called as the operator."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "library.so"
    command = ["g++", "-shared", "-fPIC", "-O1", "-o", str(path), str(PLUGIN_SOURCE)]
    subprocess.run(command, check=True, timeout=60)
    return place(path, folder)


def place(library: Path, folder: Path) -> Path:
    """Move a library into `folder`, under the name that its content gives it."""
    folder.mkdir(parents=True, exist_ok=True)
    digest = hashlib.sha256(library.read_bytes()).hexdigest()
    return library.rename(folder / f"{digest}.so")


def list_entry(
    library: Path, kind: Literal["TensorRTPlugin", "CustomOperators"] = "CustomOperators"
) -> Extension:
    """Return the entry of a recipe for a library."""
    return Extension(uri="pvc://models/library.so", sha256=library.stem, type=kind)


def cube(operator: str = CUBE[1]) -> ModelProto:
    """Return x [n, 4] to y = relu(x ** 3) through the operator of the library."""
    return build(
        [
            helper.make_node(operator, ["x"], ["h"], name="cube", domain=CUBE[0]),
            helper.make_node("Relu", ["h"], ["y"], name="relu"),
        ],
        [value("x", "n", 4)],
        [value("y", "n", 4)],
        domains=[(CUBE[0], 1)],
    )
