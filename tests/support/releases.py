"""What a release has written to clusters, kept so that every later version is tested against it.

`python -m tests.support.releases VERSION` writes the file of the version at hand. It is written once
for each release, when that is made, and never again.
"""

import json
import sys
from pathlib import Path
from typing import Any, Final

from enginewright.observed.pods import JOB_NAME
from enginewright.plan.resolve.resolve import Target, resolve
from enginewright_contract.keys import compute_prepared_key, compute_prepared_keys, engine_key
from enginewright_contract.task import EngineRecipe, Recipe

from tests.support.fake_kube import at_once
from tests.support.plan_objects import accelerator_class, owner_reference, publish_model
from tests.support.plan_world import World

FOLDER: Final = Path(__file__).parents[1] / "fixtures" / "releases"

RICH: Final[dict[str, Any]] = {
    "source": {
        "uri": "s3://models/resnet.onnx",
        "sha256": "d" * 64,
        "secretRef": {"name": "store"},
    },
    "targetOpset": 18,
    "precision": "INT8",
    "quantization": {"calibration": {"uri": "pvc://data/c.npz", "samples": 500}},
    "shapes": [{"input": "x", "min": [1, 3], "opt": [8, 3], "max": [32, 3]}],
    "parity": {"rtol": "0.01", "samples": {"uri": "pvc://data/s.npz"}},
    "serving": {"maxQueue": 7},
    "replicas": 2,
    "podTemplate": {
        "labels": {"team": "shop"},
        "serviceAccountName": "reader",
        "resources": {"limits": {"memory": "2Gi"}},
        "tolerations": [{"key": "gpu", "operator": "Exists"}],
        "imagePullSecrets": [{"name": "mine"}],
    },
}


def worlds() -> dict[str, World]:
    """Return a cluster for each kind of model, in which it serves."""
    two = World(accelerators=[{"class": "big", "replicas": 3}, {"class": "small"}], replicas=2)
    two.classes = [accelerator_class("big"), accelerator_class("small", cpuFeatures=["VNNI"])]
    engine = World(fallback={"policy": "Budget", "maxComputeShare": "0.1"}).has_gpus()
    serving = {
        "plain": World().settle().job_succeeds(),
        "rich": World(**RICH).settle().job_succeeds(),
        "two classes": two.settle().job_succeeds(),
        "engine": engine.settle().job_succeeds(publish_model("c" * 64)).engine_built(),
    }
    return {name: world.all_available() for name, world in serving.items()}


def release() -> dict[str, Any]:
    """Return what this version writes."""
    return {
        "worlds": {name: _world(world) for name, world in worlds().items()},
        "keys": {name: _keys(_target(world)) for name, world in worlds().items()},
    }


def _world(world: World) -> dict[str, Any]:
    return {
        "spec": world.spec,
        "status": world.status,
        "classes": [
            device_class.model_dump(mode="json", by_alias=True, exclude_none=True)
            for device_class in world.classes
        ],
        "objects": world.children(),
    }


def _target(world: World) -> Target:
    target = resolve(world.facts())
    assert isinstance(target, Target)
    return target


def _keys(target: Target) -> dict[str, Any]:
    engine = EngineRecipe(
        backend="tensorrt",
        backend_version="10.9.0",
        ort_version=target.recipe.ort_version,
        cuda_major="13",
        accelerator_class="l4",
        device="NVIDIA-L4 nvidia.com/gpu",
    )
    data = {"samples": "e" * 64}
    return {
        "recipe": target.recipe.model_dump(mode="json"),
        "data": data,
        "prepared": compute_prepared_key("d" * 64, target.recipe, data),
        "engine_recipe": engine.model_dump(mode="json"),
        "engine": engine_key("a" * 64, engine),
    }


def keys_now(kept: dict[str, Any]) -> dict[str, str]:
    """Return the keys with which this version finds what an earlier one has written whole."""
    recipe = Recipe.model_validate(kept["recipe"])
    engine = EngineRecipe.model_validate(kept["engine_recipe"])
    return {
        "prepared": compute_prepared_keys("d" * 64, recipe, kept["data"])[-1],
        "engine": engine_key("a" * 64, engine),
    }


def restore(kept: dict[str, Any]) -> World:
    """Return the cluster that an earlier version has left, with this version's operator in it."""
    world = World(**kept["spec"]).has_gpus()
    world.classes = [type(world.classes[0]).model_validate(item) for item in kept["classes"]]
    world.status = kept["status"]
    for item in kept["objects"]:
        at_once(world.kube.apply(world.kube.put(_get_owned(item, world))))
    return world


def _get_owned(obj: dict[str, Any], world: World) -> dict[str, Any]:
    """Return a pod with its owner, of which the files have the label alone; other objects as they are."""
    for label, kind in ((JOB_NAME, "Job"), ("deployment", "Deployment")):
        if obj["kind"] == "Pod" and (name := obj["metadata"]["labels"].get(label)):
            references = [owner_reference(world.get(kind, name))]
            return {**obj, "metadata": {**obj["metadata"], "ownerReferences": references}}
    return obj


if __name__ == "__main__":
    FOLDER.mkdir(parents=True, exist_ok=True)
    text = json.dumps(release(), indent=1, sort_keys=True)
    (FOLDER / f"{sys.argv[1]}.json").write_text(text + "\n")
