"""What the pod runs that reads a store on a claim, as `python3 -c`, with the runtime's own code: prints JSON lines.

Without a second argument one line for each artefact, else the manifests of those whose keys begin so.
"""

import json
import sys
from dataclasses import replace
from pathlib import Path

from enginewright_runtime.core.failure import StageFailure
from enginewright_runtime.core.paths import Paths
from enginewright_runtime.store import Store, open_medium
from enginewright_runtime.store.inventory import KINDS, Inventory


def run(folder: Path, beginning: str | None) -> None:
    """Print what the store in a folder has."""
    paths = replace(Paths.from_environment(), store=folder, store_address=None)
    medium = open_medium(paths, by_hand=True)
    for kind in KINDS:
        for listed in Inventory(medium).artifacts(kind):
            line = {"kind": kind.folder, "key": listed.key, "used": listed.used.isoformat()}
            if beginning is not None:
                if not listed.key.startswith(beginning):
                    continue
                manifest = Store(medium, kind).find(listed.key)
                line["manifest"] = manifest.model_dump_json() if manifest else ""
            print(json.dumps(line), flush=True)


if __name__ == "__main__":
    try:
        run(Path(sys.argv[1]), sys.argv[2] if sys.argv[2:] else None)
    except StageFailure as failure:
        Path("/dev/termination-log").write_text(failure.message)
        sys.exit(1)
