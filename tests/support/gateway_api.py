"""The Gateway API's CRDs, from its Go module: no Python or npm package contains them."""

import json
import os
from pathlib import Path
from typing import Final

from driver.build import find_go

from tests.support.programs import run_program

_MODULE: Final = "sigs.k8s.io/gateway-api@v1.6.3"  # the last one for Go 1.26
_SUM: Final = "h1:lKpJa5bGlraC/QeACvCpsHLdmO6y0iKfzVl6gzaFEYc="  # as in a go.sum


def http_routes_crd() -> Path:
    """Return the file with the CRD of HTTPRoutes, downloading it if necessary."""
    done = run_program(
        [find_go(), "mod", "download", "-json", _MODULE],
        timeout=300,
        cwd="/",
        env={**os.environ, "GOTOOLCHAIN": "local"},
    )
    modules = json.loads(done.stdout)
    assert modules["Sum"] == _SUM, f"{_MODULE} has the hash {modules['Sum']}"
    folder = Path(modules["Dir"]) / "config/crd/standard"
    return folder / "gateway.networking.k8s.io_httproutes.yaml"
