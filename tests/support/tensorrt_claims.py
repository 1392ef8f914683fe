"""Asks the TensorRT provider of the real onnxruntime-gpu which EPContext nodes it claims, without a GPU.

Its `GetCapability` runs before any engine is read. What it is linked to and what is not here is stood
in for: functions of CUDA that do nothing, and a TensorRT that takes nothing. So an engine that it
claims fails for not being one, and a node that it does not claim is left without a provider.
"""

import json
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import onnx
from enginewright_runtime.tensorrt import context, flavor
from onnx import NodeProto, helper

from tests.support.broken_models import build, value
from tests.support.programs import run_program

_TENSORRT: Final = Path(__file__).with_name("no_tensorrt.c")
_PROVIDERS: Final = ("tensorrt", "cuda")
_OURS: Final = re.compile(r"lib(cu|nv)")  # NVIDIA's libraries, by the beginning of their names
_OPEN: Final = """
import onnxruntime as ort, sys
try:
    ort.InferenceSession(sys.argv[1], providers=["TensorrtExecutionProvider"], enable_fallback=0)
except Exception as error:
    print(error)
"""


class TensorRtProvider:
    """The provider of an environment with onnxruntime-gpu, and its stand-in dependencies."""

    def __init__(self, python: Path, folder: Path) -> None:
        self._python = python
        self._folder = folder
        self._stand_in()

    def explain_refusal(self, *nodes: NodeProto) -> str:
        """Return why a session of x to y through these nodes is refused."""
        self._folder.joinpath("part.engine").write_bytes(b"no engine")
        path = self._folder / "model.onnx"
        domains = [("com.microsoft", 1)]
        model = build(list(nodes), [value("x", 1, 4)], [value("y", 1, 4)], domains=domains)
        model.graph.value_info.append(value("h", 1, 4))
        onnx.save(model, path)
        return self.run(_OPEN, str(path))

    def run(self, code: str, *arguments: str) -> str:
        """Return what a program in that environment prints, with the stand-ins for NVIDIA's libraries."""
        done = run_program(
            [str(self._python), "-c", code, *arguments],
            timeout=300,
            env=os.environ | {"LD_LIBRARY_PATH": str(self._folder)},
        )
        return done.stdout

    def _stand_in(self) -> None:
        """Make the libraries that the provider is linked to, each with the functions it is asked for."""
        capi = json.loads(
            self._run(
                str(self._python),
                "-c",
                "import json, onnxruntime as o; print(json.dumps(o.__path__[0]))",
            )
        )
        files = [f"{capi}/capi/libonnxruntime_providers_{name}.so" for name in _PROVIDERS]
        listed = "".join(self._run("readelf", "--dynamic", file) for file in files)
        asked = [
            line.partition("@")
            for file in files
            for line in self._run(
                "nm", "--dynamic", "--undefined-only", "--format=just-symbols", file
            ).split()
        ]
        for library in sorted(set(re.findall(r"NEEDED.*\[(.+)\]", listed))):
            if not _OURS.match(library):
                continue
            own = sorted({name for name, _, version in asked if version.strip("@") == library})
            bare = {name for name, _, version in asked if not version and name.startswith("cu")}
            self._make(library, own or sorted(bare), versioned=bool(own))

    def _make(self, library: str, names: Sequence[str], *, versioned: bool) -> None:
        source = self._folder / "library.c"
        source.write_text("".join(f"int {name}(void) {{ return 0; }}\n" for name in names))
        if library.startswith("libnv"):
            source.write_text(_TENSORRT.read_text())
        options = [f"-Wl,-soname,{library}"]
        if versioned:
            (self._folder / "versions").write_text(f"{library} {{ global: *; }};\n")
            options.append("-Wl,--version-script=versions")
        self._run("gcc", "-w", "-shared", "-fPIC", *options, "-o", library, source.name)

    def _run(self, *command: str) -> str:
        return run_program(command, cwd=self._folder).stdout


def engine(taken: str, given: str) -> NodeProto:
    """Return an EPContext node as the builder writes it."""
    about = context.Context(f"part-{given}", "part.engine", (0,), (taken,), (given,))
    return context.node(about, flavor.find("tensorrt"), "10.13.0", "8.9")


def relu(taken: str, given: str) -> NodeProto:
    """Return a node that no engine holds."""
    return helper.make_node("Relu", [taken], [given], name="relu")
