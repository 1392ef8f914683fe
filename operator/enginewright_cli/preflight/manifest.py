"""The InferenceModel to apply: a run's options as fields of a spec, with what its findings propose filled in.

Addresses of files of this machine are those at which a claim named models would have them; comments are the commands that upload them.
"""

import re
import shlex
from collections.abc import Sequence
from pathlib import PurePath
from typing import Any, Final

from enginewright_contract.masking import mask
from enginewright_contract.schemes import PVC
from enginewright_contract.task import Promise, ShapeProfile

from enginewright_cli.formatting import visible
from enginewright_cli.preflight import options
from enginewright_cli.preflight.request import PreflightRequest
from enginewright_cli.preflight.result import Result

_CLAIM: Final = f"{PVC.prefix}models/"
_NAME_LENGTH: Final = 40  # of an InferenceModel
_PROPOSED: Final = "shapes are sizes that ran: write your smallest, usual and largest"


def write_manifest(request: PreflightRequest, result: Result) -> str | None:
    """Return it as YAML; None unless all targets would serve the model, perhaps with what is proposed."""
    errors = [finding for finding in result.findings if finding.severity == "error"]
    is_resolved = bool(errors) and all(finding.options for finding in errors)
    if result.verdict not in {"pass", "warn"} and not is_resolved:
        return None
    given = {profile.input: profile for profile in request.recipe.shapes}
    proposed = {
        profile.input: profile
        for finding in result.findings
        for profile in options.read_suggested(finding.options)
        if profile.input not in given
    }
    uploads: dict[str, str] = {}
    spec = _spec(request, [*given.values(), *proposed.values()], uploads)
    comments = [
        shlex.join(("enginewright", "upload", local, uri)) for uri, local in uploads.items()
    ]
    document = {
        "apiVersion": "enginewright.dev/v1alpha1",
        "kind": "InferenceModel",
        "metadata": {"name": _name(request.shown)},
        "spec": spec,
    }
    lines = (f"# {visible(text)}\n" for text in (*comments, *([_PROPOSED] if proposed else ())))
    return "".join(lines) + _dump(document)


def join_manifests(results: Sequence[Result]) -> str:
    """Return the manifests of all models that have one, as documents of one file."""
    return "---\n".join(result.manifest for result in results if result.manifest)


def _spec(
    request: PreflightRequest, shapes: Sequence[ShapeProfile], uploads: dict[str, str]
) -> dict[str, Any]:
    """Return the fields that are not absent; add addresses of files of this machine to `uploads`, with their paths."""

    def address(source: object) -> dict[str, str]:
        text = str(source)
        if "://" in text:
            return {"uri": mask(text)}
        uri = _CLAIM + re.sub(r"[^\w.-]", "-", PurePath(text).name, flags=re.ASCII)
        uploads[uri] = text
        return {"uri": uri}

    recipe = request.recipe
    quantization = {
        "calibration": address(request.calibration) if request.calibration else None,
        "rest": recipe.quantization.rest if recipe.quantization else None,
    }
    steps = recipe.processing.steps() if recipe.processing else {}
    processing = {
        side: [
            address(request.steps.get(name, uri))
            for name, uri in steps.items()
            if name.startswith(side)
        ]
        for side in ("before", "after")
    }
    fields = {
        "source": address(request.source),
        "extensions": [{"type": extension.type} for extension in recipe.extensions],
        "processing": _present(processing),
        "targetOpset": recipe.target_opset,
        "precision": recipe.precision,
        "quantization": _present(quantization),
        "shapes": [_profile(profile) for profile in shapes],
        "parity": {"samples": address(request.samples)} if request.samples else None,
        "backends": list(request.backends),
        "fallback": _fallback(request.promise),
    }
    return _present(fields)


def _present(fields: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value}


def _profile(profile: ShapeProfile) -> dict[str, Any]:
    written: dict[str, Any] = {"input": profile.input}
    written |= {name: list(getattr(profile, name)) for name in ("min", "opt", "max")}
    if profile.low is not None and profile.high is not None:
        low, high = map(options.format_number, (profile.low, profile.high))
        written["range"] = {"low": low, "high": high}
    return written


def _fallback(promise: Promise) -> dict[str, str] | None:
    if promise.policy == "Forbid":
        return None
    shares = {"maxComputeShare": promise.max_compute_share, "maxNodeShare": promise.max_node_share}
    written = {name: f"{share * 100:g}%" for name, share in shares.items() if share is not None}
    return {"policy": promise.policy, **written}


def _name(source: str) -> str:
    """Return the name of the file as the API server accepts it."""
    words = re.sub(r"[^a-z0-9]+", "-", PurePath(source).stem.lower()).strip("-")
    named = words if re.match("[a-z]", words) else f"model-{words}"
    return named[:_NAME_LENGTH].rstrip("-")


def _dump(document: dict[str, Any]) -> str:
    """Return YAML as people write it: lists of numbers on one line."""
    import yaml  # noqa: PLC0415 - takes a while

    class Dumper(yaml.SafeDumper):
        """Has a style of its own for lists."""

    def represent(dumper: yaml.SafeDumper, value: list[Any]) -> yaml.Node:
        is_short = not any(isinstance(item, dict) for item in value)
        return dumper.represent_sequence("tag:yaml.org,2002:seq", value, flow_style=is_short)

    Dumper.add_representer(list, represent)
    written: str = yaml.dump(
        document, Dumper=Dumper, sort_keys=False, allow_unicode=True, width=1 << 20
    )
    return written
