"""Twelve models move to a new runtime image and an edited class: never more than two at once, even if the operator is killed."""

from collections import Counter
from collections.abc import Callable, Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

import pytest
from enginewright.manifests.labels import MODEL, ROLLOUT_ORDER

from tests.apiserver.world import (
    GOOD,
    PUBLISHED,
    UNJUDGED,
    World,
    accelerator_class,
    model,
    set_up,
)
from tests.e2e.harness import Namespace, eventually
from tests.support import simulated_cluster as played
from tests.support.operator_process import CPU_IMAGE, OperatorProcess
from tests.support.waiting import Deadline

pytestmark = pytest.mark.apiserver

NEW_IMAGE: Final = "example.com/enginewright/cpu:2"
NAMES: Final = [f"m{number:02}" for number in range(12)]
FIRST, REFUSING = "m07", "m03"  # the canary model; the one that the new image cannot prepare
LIMIT: Final = 2
DEADLINE: Final = 300  # seconds for all models


class Fleet(World):
    """Plays the cluster for all models, and counts how many move at once."""

    def __init__(self, system: Namespace, user: Namespace, folder: Path) -> None:
        super().__init__(system, user, folder)
        self.most = 0
        self.begun: list[str] = []

    def start(self, image: str) -> OperatorProcess:
        limits = {"limit": LIMIT, "maxFailures": 2}
        return self.operator(images={"cpu": image}, fleet=limits)

    def images(self) -> dict[str, dict[str, Any]]:
        """Return `status.images` by model, and remember which have begun to move."""
        images = {
            entry["metadata"]["name"]: entry.get("status", {}).get("images", {})
            for entry in self.user.items("im")
        }
        moving = [name for name, image in images.items() if image.get("state") == "Moving"]
        self.begun += [name for name in moving if name not in self.begun]
        self.most = max(self.most, len(moving))
        assert self.most <= LIMIT
        return images

    def states(self) -> Counter[str]:
        return Counter(image.get("state", "") for image in self.images().values())

    def tend(self, until: Callable[[], bool], refused: str = "") -> None:
        """Run Jobs and Deployments until something holds; Jobs of `refused` fail."""
        deadline = Deadline(DEADLINE)
        while not until():
            assert not deadline.is_over(), self.images()
            jobs = [job for job in self.jobs("prepare") if not job["status"].get("conditions")]
            for job in jobs:
                name = job["metadata"]["name"]
                fails = job["metadata"]["labels"][MODEL] == refused
                pod = played.start_pod(self.user, job)
                played.run_stages(self.user, pod, UNJUDGED if fails else _good(name))
                (played.fail_job if fails else played.complete_job)(self.user, name)
            for entry in self.user.items("deployments"):
                if entry.get("status", {}).get("observedGeneration") != _generation(entry):
                    played.roll_out(self.user, entry["metadata"]["name"])

    def count_tolerating(self) -> int:
        """Return how many models have tolerations, which only an edited class gives them."""
        self.images()
        templates = (entry["spec"]["template"] for entry in self.user.items("deployments"))
        return sum("tolerations" in template["spec"] for template in templates)

    def ready(self) -> int:
        return sum(
            item["type"] == "Ready" and item["status"] == "True"
            for one in self.user.items("im")
            for item in one.get("status", {}).get("conditions", ())
        )


def _good(job: str) -> dict[str, dict[str, Any]]:
    key = sha256(job.encode()).hexdigest()
    return {**GOOD, "publish": {"ok": True, "published": {**PUBLISHED, "key": key}}}


def _generation(obj: dict[str, Any]) -> int:
    return int(obj["metadata"]["generation"])


def _image(deployment: dict[str, Any]) -> str:
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    return str(container["image"])


@pytest.fixture
def fleet(new_namespace: Callable[[], Namespace], tmp_path: Path) -> Iterator[Fleet]:
    with set_up(Fleet, new_namespace, tmp_path) as fleet:
        for name in NAMES:
            # of one source they would share a preparation
            one = model(name, f"https://example.com/{name}.onnx")
            one["spec"]["rollout"] = {"canary": {"replicas": 0}}
            one["metadata"]["labels"] = {ROLLOUT_ORDER: "first"} if name == FIRST else {}
            fleet.user.apply(one)
        yield fleet


# event: Operator | a new version with other runtime images is installed | all pods; models move
#   [one after the other](../fleet.md), and those that fail keep their image | `kubectl get im -o wide`
@pytest.mark.timeout(900)
def test_models_move_model_by_model_over_a_restart(fleet: Fleet) -> None:
    with fleet.start(CPU_IMAGE) as operator:
        operator.wait_ready()
        fleet.probe_images(1)
        fleet.tend(lambda: fleet.ready() == len(NAMES))
        assert fleet.states() == {"Moved": len(NAMES)}
    with fleet.start(NEW_IMAGE) as operator:
        operator.wait_ready()
        eventually(lambda: fleet.states() == {"Waiting": len(NAMES)}, 30, interval=0.2)
        assert fleet.ready() == len(NAMES)
        fleet.probe_images(2)
        # earlier than the one that is kept: a process that is killed may not have written the Event yet
        fleet.tend(lambda: fleet.states()["Moved"] >= 2, REFUSING)
        operator.kill()
    with fleet.start(NEW_IMAGE) as operator:
        done = {"Moved": len(NAMES) - 1, "Kept": 1}
        fleet.tend(lambda: fleet.states() == done, REFUSING)
        assert fleet.most == LIMIT
        assert fleet.begun[0] == FIRST
        eventually(lambda: fleet.ready() == len(NAMES), 20, interval=0.2)

        images = {name: _image(fleet.user.get("deployment", f"{name}-cpu")) for name in NAMES}
        assert images.pop(REFUSING) == CPU_IMAGE
        assert set(images.values()) == {NEW_IMAGE}
        kept = fleet.images()[REFUSING]
        assert (kept["reason"], kept["image"]) == ("ParityUnknown", CPU_IMAGE)
        assert UNJUDGED["quantize"]["message"] in kept["message"]
        shown = fleet.user.kubectl("get", "im", REFUSING, "--output", "wide").splitlines()
        head, row = (line.split() for line in shown)
        assert head[-3:] == ["IMAGE", "MOVE", "CHOICE"]
        assert row[-2:] == [CPU_IMAGE, "Kept"], "nothing is chosen"
        fleet.wait_events("im", REFUSING, "ImageKept")
        assert operator.total("enginewright_fleet_models", state="Moved") == len(NAMES) - 1
        assert operator.total("enginewright_fleet_models", state="Kept") == 1

        operator.wait_quiet()
        writes, passes = operator.writes(), operator.passes()
        fleet.user.kubectl("annotate", "im", NAMES[0], "example.com/note=1")
        operator.wait_passes(passes + 1)
        assert operator.writes() == writes, "what has moved costs nothing"

        other = '{"spec": {"source": {"uri": "https://example.com/other.onnx"}}}'
        fleet.user.kubectl("patch", "im", REFUSING, "--type=merge", "--patch", other)
        fleet.tend(lambda: fleet.states() == {"Moved": len(NAMES)})

        edited = accelerator_class()
        edited["spec"]["tolerations"] = [{"key": "dedicated", "operator": "Exists"}]
        fleet.user.apply(edited)
        fleet.tend(lambda: fleet.count_tolerating() == len(NAMES))
        fleet.tend(lambda: fleet.states() == {"Moved": len(NAMES)})
