"""The chart as Helm's archive, and the same in an OCI layout, as `helm push` would make it."""

from collections.abc import Mapping
from typing import Any, Final

import yaml

from hack.releasing.archives import make_layout, make_tgz, write_json
from hack.releasing.changelog import Section

_CONFIG_TYPE: Final = "application/vnd.cncf.helm.config.v1+json"
_LAYER_TYPE: Final = "application/vnd.cncf.helm.chart.content.v1.tar+gzip"
_METADATA: Final = "Chart.yaml"


def complete_metadata(text: str, section: Section) -> dict[str, Any]:
    """Return a chart's metadata with what Artifact Hub shows of this version."""
    metadata: dict[str, Any] = yaml.safe_load(text)
    metadata["annotations"] |= {
        "artifacthub.io/prerelease": "true" if "-" in section.version else "false",
        "artifacthub.io/changes": _dump(section.annotation),
    }
    return metadata


def package(
    files: Mapping[str, bytes], section: Section, time: int
) -> tuple[bytes, dict[str, bytes]]:
    """Return the chart's archive, and the files of its OCI layout.

    Args:
        files: Content by path below the chart's folder.
        section: The version's changes.
        time: Seconds since the epoch, of all files.
    """
    metadata = complete_metadata(files[_METADATA].decode(), section)
    name, version = metadata["name"], metadata["version"]
    first = (_METADATA, _dump(metadata).encode())  # Helm reads it without the rest
    rest = sorted((path, content) for path, content in files.items() if path != _METADATA)
    archive = make_tgz([(f"{name}/{path}", content) for path, content in (first, *rest)], time)
    layout = make_layout(
        f"{name}:{version}",
        (_CONFIG_TYPE, write_json(metadata)),
        (_LAYER_TYPE, archive),
        {
            "org.opencontainers.image.title": name,
            "org.opencontainers.image.version": version,
            "org.opencontainers.image.description": metadata["description"],
        },
    )
    return archive, layout


def _dump(value: object) -> str:
    return yaml.safe_dump(value, sort_keys=False, width=1000, allow_unicode=True)
