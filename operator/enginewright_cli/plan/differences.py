"""What would change: fields of a spec, and parts of a revision."""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from enginewright.kube.api import JsonObject
from enginewright.manifests.pod_options import PodOptions
from enginewright.manifests.snapshot import Snapshot
from enginewright.plan.types import Facts

from enginewright_cli.plan.result import Difference

_SHOWN: Final = 12  # characters of a key
_DUMP: Final[dict[str, Any]] = {"mode": "json", "by_alias": True, "exclude_none": True}
_OPTIONS: Final = set(PodOptions.model_fields)
_LATER: Final = "known once it is prepared"


def of_specs(facts: Facts, live: JsonObject | None) -> Iterator[Difference]:
    """Yield the fields of the spec that differ from the existing model."""
    if live is None:
        return
    model = type(facts.model)
    before = _flat(model.model_validate({**live, "status": {}}).spec.model_dump(**_DUMP))
    after = _flat(facts.model.spec.model_dump(**_DUMP))
    for field in dict.fromkeys((*before, *after)):
        if before.get(field) != after.get(field):
            yield Difference(
                field=f"spec.{field}", before=before.get(field, ""), after=after.get(field, "")
            )


def of_revisions(facts: Facts, snapshot: Snapshot, *, keys_known: bool) -> Iterator[Difference]:
    """Yield the differences between the serving revision and the new one."""
    serving = facts.model.status.serving
    revision = serving.revision if serving else None
    stored = next((view for view in facts.revisions if view.revision == revision), None)
    if stored is None:
        return
    if stored.kept is None:
        yield Difference(field="revision", before="unreadable: written by another version")
        return
    before, after = _parts(stored.kept.snapshot), _parts(snapshot)
    for field in dict.fromkeys((*before, *after)):
        unknown = not keys_known and field.endswith(("prepared model", "model digest", "engine"))
        new = _LATER if unknown else after.get(field, "")
        if before.get(field, "") != new:
            yield Difference(field=field, before=before.get(field, ""), after=new)


def _parts(snapshot: Snapshot) -> dict[str, str]:
    parts = {
        "prepared model": snapshot.prepared_key[:_SHOWN],
        "model digest": snapshot.model_digest[:_SHOWN],
        "fallback": _text(snapshot.promise.model_dump(mode="json", exclude_none=True)),
        "server processes": str(snapshot.processes) if snapshot.processes > 1 else "",
        **{
            name.replace("_", " "): _text(item)
            for name, item in snapshot.model_dump(mode="json", include=_OPTIONS).items()
            if item not in (None, {}, [])
        },
    }
    for device_class in snapshot.classes:
        parts[f"class {device_class.name}: image"] = device_class.image
        interim = " (interim)" if device_class.interim else ""
        parts[f"class {device_class.name}: backend"] = f"{device_class.backend}{interim}"
        if device_class.engine_key:
            parts[f"class {device_class.name}: engine"] = device_class.engine_key[:_SHOWN]
    return {name: text for name, text in parts.items() if text}


def _flat(value: Mapping[str, Any], path: str = "") -> dict[str, str]:
    """Return the leaves by their path; lists are leaves."""
    leaves: dict[str, str] = {}
    for key, item in value.items():
        place = f"{path}.{key}" if path else key
        if isinstance(item, Mapping) and item:
            leaves |= _flat(item, place)
        elif item not in ({}, [], ()):
            leaves[place] = _text(item)
    return leaves


def _text(value: Any) -> str:  # noqa: ANN401 - any JSON value
    if isinstance(value, Mapping):
        return ", ".join(f"{key}: {_text(item)}" for key, item in value.items())
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(_text, value))}]"
    return str(value)
