"""Where Jobs run: the chart's and the model's settings as one template, and its fields in a Job.

It does not affect a Job's result, so it enters no key and no name; an annotation of the Job records
the template that it was created with.
"""

import json
from collections.abc import Mapping
from typing import Any, Final

from enginewright_contract.keys import content, content_hash

from enginewright.api.pods import JobTemplate, PodSecurityContext

ARCHITECTURE: Final = "kubernetes.io/arch"  # label of every node, written by its kubelet
USUAL_ARCHITECTURE: Final = "amd64"  # of nodes whose class does not say
# on pods its labels would queue each pod separately, besides the Job
_KUEUE: Final = "kueue.x-k8s.io/"
# Keeps a pod out of service meshes: Istio, Linkerd, Consul and Kuma. A proxy that is no native sidecar begins after a
# Job's stages, whose requests it is to carry, and does not end with them.
WITHOUT_MESH: Final = JobTemplate(
    labels={"sidecar.istio.io/inject": "false", "kuma.io/sidecar-injection": "disabled"},
    annotations={
        "sidecar.istio.io/inject": "false",
        "linkerd.io/inject": "disabled",
        "consul.hashicorp.com/connect-inject": "false",
    },
)
_NAMES: Final = {"x86_64": "amd64", "aarch64": "arm64"}  # Linux' and Kubernetes' (Go's)
_HASH_LENGTH: Final = 16


def merge_templates(defaults: JobTemplate, own: JobTemplate) -> JobTemplate:
    """Return one template: `own` overrides single values and named entries; lists are concatenated."""
    return JobTemplate(
        labels={**defaults.labels, **own.labels},
        annotations={**defaults.annotations, **own.annotations},
        node_selector={**defaults.node_selector, **own.node_selector},
        tolerations=(*defaults.tolerations, *own.tolerations),
        affinity=own.affinity if own.affinity is not None else defaults.affinity,
        image_pull_secrets=(*defaults.image_pull_secrets, *own.image_pull_secrets),
        runtime_class_name=own.runtime_class_name or defaults.runtime_class_name,
        priority_class_name=own.priority_class_name or defaults.priority_class_name,
        security_context=PodSecurityContext.model_validate(
            {**defaults.security_context.manifest(), **own.security_context.manifest()}
        ),
    )


def placement_hash(template: JobTemplate) -> str:
    """Return the value of the Job's annotation for its template; empty for the default template."""
    fields = content(template)
    return content_hash(fields)[:_HASH_LENGTH] if fields else ""


def architecture_label(reported: str) -> str:
    """Return the value of the nodes' label for an architecture as uname names it."""
    return _NAMES.get(reported, reported)


def chooses_architecture(selector: Mapping[str, str], affinity: object) -> bool:
    """Return whether a pod's own placement says which architecture its nodes have."""
    return ARCHITECTURE in selector or ARCHITECTURE in json.dumps(affinity)


def pod_metadata(template: JobTemplate, ours: Mapping[str, str]) -> dict[str, Any]:
    """Return labels and annotations of a Job's pods."""
    labels = {name: label for name, label in template.labels.items() if not name.startswith(_KUEUE)}
    annotations = dict(template.annotations)
    return {"labels": {**labels, **ours}, **({"annotations": annotations} if annotations else {})}


def pod_placement(
    template: JobTemplate, required: Mapping[str, Any], image_architecture: str
) -> dict[str, Any]:
    """Return the placement fields of a pod's spec; `required` are those that the Job itself requires."""
    selector = {**template.node_selector, **(required.get("nodeSelector") or {})}
    # Nodes of a class are known to run the image; for others, a user's choice takes precedence.
    chosen = chooses_architecture(selector, template.affinity)
    if image_architecture and not required.get("nodeSelector") and not chosen:
        selector[ARCHITECTURE] = image_architecture
    fields = {
        "nodeSelector": selector,
        "tolerations": [
            *(required.get("tolerations") or ()),
            *(toleration.manifest() for toleration in template.tolerations),
        ],
        "affinity": template.affinity,
        "priorityClassName": template.priority_class_name,
        "runtimeClassName": template.runtime_class_name or required.get("runtimeClassName"),
    }
    return {name: field for name, field in fields.items() if field}
