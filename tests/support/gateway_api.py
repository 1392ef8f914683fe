"""The Gateway API's CRDs, from its Go module: no Python or npm package contains them."""

import json
import os
import subprocess
from pathlib import Path
from typing import Final

from driver.build import find_go

_MODULE: Final = "sigs.k8s.io/gateway-api@v1.6.3"  # the last one for Go 1.26
_SUM: Final = "h1:lKpJa5bGlraC/QeACvCpsHLdmO6y0iKfzVl6gzaFEYc="  # as in a go.sum


def http_routes_crd() -> Path:
    """Return the file with the CRD of HTTPRoutes, downloading it if necessary."""
    done = subprocess.run(
        [find_go(), "mod", "download", "-json", _MODULE],
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
        cwd="/",  # outside of any module
        env={**os.environ, "GOTOOLCHAIN": "local"},
    )
    found = json.loads(done.stdout)
    assert found["Sum"] == _SUM, f"{_MODULE} has the hash {found['Sum']}"
    folder = Path(found["Dir"]) / "config/crd/standard"
    return folder / "gateway.networking.k8s.io_httproutes.yaml"
