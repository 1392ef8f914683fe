"""Writes the custom resource definitions that the models describe, or checks that they are written.

They go to two places: `crds/`, to apply or read, and the chart's `files/crds/`, where they carry an
annotation that keeps them, and with them every model, when the release is uninstalled.
"""

import argparse
import difflib
import sys
from pathlib import Path
from typing import Final

import yaml
from enginewright.api.crds import definitions
from typing_extensions import override

ROOT: Final = Path(__file__).resolve().parent.parent
HEADER: Final = "# Made by hack/crds from operator/enginewright/api: change that instead.\n"
PLACES: Final[dict[str, dict[str, str]]] = {
    "crds": {},
    "charts/enginewright/files/crds": {"helm.sh/resource-policy": "keep"},
}


class _Dumper(yaml.SafeDumper):
    """Writes shared parts out, since not every reader of a CRD knows YAML's aliases."""

    @override
    def ignore_aliases(self, data: object) -> bool:
        return True


def wanted() -> dict[Path, str]:
    """Return the text of every file."""
    return {
        ROOT / place / name: HEADER + yaml.dump(body, Dumper=_Dumper, sort_keys=False, width=110)
        for place, annotations in PLACES.items()
        for name, body in definitions(annotations).items()
    }


def main() -> int:
    """Write the files, or with --check tell how they differ."""
    parser = argparse.ArgumentParser(prog="hack/crds", description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; fail with a diff")
    check = parser.parse_args().check
    files = wanted()
    present = {path for place in PLACES for path in (ROOT / place).glob("*.yaml")}
    drifted = False
    for path in sorted(files.keys() | present):
        old = path.read_text() if path.exists() else ""
        new = files.get(path, "")
        if old == new:
            continue
        drifted = True
        if check:
            name = str(path.relative_to(ROOT))
            sys.stdout.writelines(
                difflib.unified_diff(
                    old.splitlines(keepends=True),
                    new.splitlines(keepends=True),
                    f"{name} (in the tree)",
                    f"{name} (from the models)",
                )
            )
        elif new:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(new)
        else:
            path.unlink()
    if check and drifted:
        print(
            "the custom resource definitions differ from the models: run hack/crds", file=sys.stderr
        )
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
