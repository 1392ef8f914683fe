"""Stands in for NVIDIA's package index: the wheel of TensorRT's libraries, with empty ones in it.

The wheel has 3.7 GB and its index cannot be reached from every machine. What asks for it is real: NVIDIA's source
package in the ordinary index, and its build backend.
"""

import base64
import hashlib
import subprocess
import zipfile
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from tests.support.web import WebServer, serve

VERSION: Final = "10.16.1.11"
LIBRARIES: Final = ("libnvinfer.so.10", "libnvinfer_plugin.so.10", "libnvonnxparser.so.10")
_NAME: Final = f"tensorrt_cu13_libs-{VERSION}"
_FILE: Final = f"{_NAME}-py3-none-manylinux_2_28_x86_64.whl"


def offer(server: WebServer, folder: Path, libraries: Iterable[str] = LIBRARIES) -> str:
    """Serve a wheel with these libraries; return the index' address."""
    wheel = _wheel(folder, libraries)
    page = f'<a href="{_FILE}#sha256={hashlib.sha256(wheel).hexdigest()}">{_FILE}</a>'
    server.routes["/tensorrt-cu13-libs/"] = serve(page.encode(), Content_Type="text/html")
    server.routes[f"/tensorrt-cu13-libs/{_FILE}"] = serve(wheel)
    return f"{server.url}/"


def _wheel(folder: Path, libraries: Iterable[str]) -> bytes:
    folder.mkdir()
    about = f"{_NAME}.dist-info"
    files = {
        "tensorrt_libs/__init__.py": b"",
        f"{about}/METADATA": f"Metadata-Version: 2.1\nName: tensorrt_cu13_libs\nVersion: {VERSION}\n".encode(),
        f"{about}/WHEEL": b"Wheel-Version: 1.0\nRoot-Is-Purelib: false\nTag: py3-none-manylinux_2_28_x86_64\n",
        f"{about}/top_level.txt": b"tensorrt_libs\n",
    }
    for name in libraries:
        path = folder / name
        command = ["cc", "-shared", "-fPIC", f"-Wl,-soname,{name}", "-o", str(path), "-xc", "-"]
        subprocess.run(command, input="", text=True, check=True, timeout=60)
        files[f"tensorrt_libs/{name}"] = path.read_bytes()
    digests = {
        name: base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
        for name, content in files.items()
    }
    record = "".join(
        f"{name},sha256={digest},{len(files[name])}\n" for name, digest in digests.items()
    )
    files[f"{about}/RECORD"] = f"{record}{about}/RECORD,,\n".encode()
    with zipfile.ZipFile(folder / _FILE, "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return (folder / _FILE).read_bytes()
