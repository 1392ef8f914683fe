"""The hash by which it is known that a spec has changed: of all in it that decides what serves."""

from enginewright_contract.keys import content, content_hash

from enginewright.api.inference_model import InferenceModelSpec


def spec_hash(spec: InferenceModelSpec, processes: int = 1) -> str:
    """Return the hash of a spec without what sets the number of pods and the rollout settings.

    `processes`: of an earlier release's `spec.serving.processes`, as it was with it.
    """
    hashed = content(spec)
    for name in ("replicas", "rollout"):
        hashed.pop(name, None)
    hashed.get("build", {}).pop("pod_template", None)
    hashed["source"].pop("refresh_interval", None)
    serving = hashed.get("serving", {})
    asked = [serving.pop(name, None) for name in ("autoscaling", "route")]
    if any(asked) and not serving:
        del hashed["serving"]
    if processes > 1:
        hashed["serving"] = {**hashed.get("serving", {}), "processes": processes}
    hashed["accelerators"] = [each.class_name for each in spec.accelerators]
    return content_hash(hashed)
