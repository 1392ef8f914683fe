"""An archive for support: what the cluster holds about a model, without what may be secret.

Secrets are never read. Values of environment variables, applied configurations and managed fields are
left out, and addresses lose their accounts and queries.
"""

import io
import json
import tarfile
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, Final

import yaml
from enginewright.kube.client import KubeClient
from enginewright.manifests.serving_pod import SERVER
from enginewright_contract.masking import mask
from enginewright_contract.task import (
    ENGINE_STAGES,
    FETCH_ARTIFACT,
    LOOKUP_STAGE,
    PREPARE_STAGES,
    SIDECAR,
)
from enginewright_contract.verdict import Verdict

from enginewright_cli.diagnose.compare import place
from enginewright_cli.diagnose.explain import explain
from enginewright_cli.diagnose.logs import list_sources, read
from enginewright_cli.diagnose.reading import ModelObjects
from enginewright_cli.reporting import CommandError

REMOVED: Final = "(removed)"
_METADATA: Final = ("managedFields",)
_CONTAINERS: Final = frozenset(
    {*PREPARE_STAGES, LOOKUP_STAGE, *ENGINE_STAGES, FETCH_ARTIFACT, SERVER, SIDECAR}
)
_ANNOTATIONS: Final = ("kubectl.kubernetes.io/last-applied-configuration",)


def pack(
    seen: ModelObjects, logs: Mapping[str, str], versions: Mapping[str, str], now: datetime
) -> bytes:
    """Return the archive, .tar.gz; `logs` by file name."""
    packed = io.BytesIO()
    folder = f"enginewright-{seen.namespace}-{seen.name}"
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        for name, text in _files(seen, logs, versions):
            content = text.encode()
            member = tarfile.TarInfo(f"{folder}/{name}")
            member.size, member.mtime = len(content), int(now.timestamp())
            archive.addfile(member, io.BytesIO(content))
    return packed.getvalue()


async def read_logs(
    client: KubeClient, seen: ModelObjects, *, tail: int
) -> tuple[ModelObjects, dict[str, str]]:
    """Return the last lines of the containers' logs, or why they cannot be read, by file name.

    Containers that others have added, such as a mesh's proxy, are left out.
    """
    texts = {}
    for source in list_sources(seen):
        if source.container.name in _CONTAINERS:
            name = f"{source.pod.name}-{source.container.name}"
            try:
                texts[name] = await read(client, source, tail=tail, previous=False)
            except CommandError as error:
                texts[name] = f"{error}\n"
    return seen, texts


def _files(
    seen: ModelObjects, logs: Mapping[str, str], versions: Mapping[str, str]
) -> Iterator[tuple[str, str]]:
    yield "versions.json", json.dumps(versions, indent=2)
    yield "explanation.json", _json(explain(seen).model_dump(mode="json", exclude_none=True))
    yield "placement.json", _json(place(seen).model_dump(mode="json", exclude_none=True))
    for resource, objects in seen.objects.items():
        if objects:
            yield f"objects/{resource.plural}.yaml", yaml.safe_dump_all(map(redact, objects))
    for pod, verdict in seen.verdicts.items():
        if isinstance(verdict, Verdict):
            yield f"verdicts/{pod}.json", _json(verdict.model_dump(mode="json", exclude_none=True))
    for name, text in logs.items():
        yield f"logs/{name}.log", mask(text)


def _json(value: object) -> str:
    return json.dumps(redact(value), indent=2)


def redact(value: Any) -> Any:  # noqa: ANN401 - any JSON value
    """Return a JSON value without what may be secret."""
    if isinstance(value, str):
        return mask(value)
    if isinstance(value, Sequence):
        return [redact(item) for item in value]
    if not isinstance(value, Mapping):
        return value
    result = {name: redact(item) for name, item in value.items() if name not in _METADATA}
    if isinstance(env := value.get("env"), Sequence):
        result["env"] = [_without_value(item) for item in env]
    if isinstance(annotations := result.get("annotations"), dict):
        for name in _ANNOTATIONS:
            annotations.pop(name, None)
    return result


def _without_value(variable: object) -> Any:  # noqa: ANN401 - any JSON value
    if isinstance(variable, Mapping) and "value" in variable:
        return {**variable, "value": REMOVED}
    return redact(variable)
