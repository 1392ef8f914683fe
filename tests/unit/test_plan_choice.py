"""Which backend serves by the benchmarks of its engine's Job: when, on which classes, and what is reported."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

import pytest
from enginewright.api.accelerator_class import AcceleratorClass
from enginewright.api.inference_model import InferenceModel
from enginewright_cli.rollout.decide import promote
from enginewright_contract.reasons import Reason
from enginewright_contract.report import Published, PublishedBackend
from enginewright_contract.task import EngineTask, ServeTask

from tests.support.plan_objects import GPU_IMAGE, accelerator_class, image_facts, l4, publish_model
from tests.support.plan_world import World

BACKENDS: Final = ["tensorrt", "cuda", "cpu"]
FASTEST: Final = {"choose": "Fastest"}
BUILT: Final = {
    "sha256": "e" * 64,
    "sizeBytes": 3_450_000,
    "buildMilliseconds": 512,
    "computeCapabilities": ["8.9"],
    "nodesTotal": 105,
    "nodesAccelerated": 105,
}


def ms(backend: str, p50: float) -> dict[str, Any]:
    """Return a backend as an InferenceEngine records it, with a median in milliseconds."""
    median = round(p50 * 1000)
    return {
        "backend": backend,
        "shapes": "opt",
        "p50Microseconds": median,
        "p99Microseconds": 2 * median,
    }


def exclude(backend: str, why: str) -> dict[str, Any]:
    return {"backend": backend, "excluded": why}


def prepare(
    backends: list[str] | None = None,
    *others: AcceleratorClass,
    published: Published | None = None,
    **spec: Any,
) -> World:
    """Return a model that is prepared for engines on a class of GPUs, and on these other ones."""
    spec.setdefault("build", FASTEST)
    world = World(backends=backends or BACKENDS, **spec).has_gpus(
        backends=BACKENDS, aheadOfTime=False
    )
    world.classes = [*world.classes, *others]
    gpu = image_facts("gpu").model_copy(
        update={"backends": {"tensorrt": "10.9.0", "cuda": "13", "cpu": "1.31.1"}}
    )
    world.images = {**world.images, GPU_IMAGE: gpu}
    return world.settle().job_succeeds(published or publish_model())


def compare(*benchmarks: dict[str, Any], **spec: Any) -> World:
    return prepare(**spec).engine_built(backends=list(benchmarks))


def tasks(world: World) -> dict[str, ServeTask]:
    by_class = {}
    for serving_deployment in world.serving_deployments():
        server = serving_deployment["spec"]["template"]["spec"]["containers"][0]
        value = next(one["value"] for one in server["env"] if one["name"] == "ENGINEWRIGHT_TASK")
        name = serving_deployment["metadata"]["labels"]["enginewright.dev/class"]
        by_class[name] = ServeTask.model_validate_json(value)
    return by_class


def backends(world: World) -> dict[str, str]:
    return {name: task.backend for name, task in tasks(world).items()}


def choices(world: World) -> dict[str, tuple[str, str]]:
    reported = world.status.get("choices", [])
    return {item["class"]: (item["backend"], item["message"]) for item in reported}


# what is compared


def engine_task(world: World) -> EngineTask:
    stage = world.job("engine")["spec"]["template"]["spec"]["initContainers"][0]
    value = next(item["value"] for item in stage["env"] if item["name"] == "ENGINEWRIGHT_TASK")
    return EngineTask.model_validate_json(value)


def remove_probe(world: World, failure: str = "") -> World:
    """Have the image of the processors not be probed, or the probe fail."""
    image = world.config.images["cpu"]
    world.images = {key: facts for key, facts in world.images.items() if key != image}
    world.image_failures = {image: failure} if failure else {}
    return world


def test_the_job_compares_the_other_backends_that_its_image_runs() -> None:
    world = prepare().misses()
    assert engine_task(world).benchmark_backends == ("cuda", "cpu")
    first = prepare(build={}).misses()
    assert engine_task(first).benchmark_backends is None
    assert "benchmark_backends" not in engine_task(first).to_json()
    assert engine_task(first).engine_key == engine_task(world).engine_key
    assert engine_task(prepare(["tensorrt", "cuda"]).misses()).benchmark_backends == ("cuda",)
    assert engine_task(prepare(["tensorrt", "cpu"]).misses()).benchmark_backends == ("cpu",)


def test_the_job_does_not_compare_backends_that_lack_the_precision_of_the_rest() -> None:
    published = publish_model().model_copy(update={"precision": "INT8"})
    for rest, compared in (("FP32", ("cpu",)), ("FP16", None)):
        quantization = {"calibration": {"uri": "pvc://a/b"}, "rest": rest}
        world = prepare(published=published, precision="INT8", quantization=quantization).misses()
        assert engine_task(world).benchmark_backends == compared


def test_a_job_after_one_that_failed_in_the_benchmark_compares_nothing() -> None:
    """The memory of another backend's process may be why."""
    world = prepare().misses()
    world.job_fails(Reason.OUT_OF_MEMORY, "benchmark", of="engine").later(seconds=120)
    assert engine_task(world).benchmark_backends is None
    other = prepare().misses()
    other.job_fails(Reason.STORE_UNAVAILABLE, "build", of="engine").later(seconds=120)
    assert engine_task(other).benchmark_backends == ("cuda", "cpu")


# fault: Engines | the comparison with other backends takes longer than `spec.build.timeout` leaves | it has a budget of
#   5 minutes; if the Job is ended in that stage, the next one compares nothing | when the Job is ended
def test_a_job_after_one_that_was_ended_in_the_benchmark_compares_nothing() -> None:
    world = prepare().misses()
    world.is_too_late("benchmark", of="engine")
    (engine,) = world.all("InferenceEngine")
    assert engine["status"]["failure"]["reason"] == "Timeout"
    assert "lasting" not in engine["status"]["failure"]
    world.later(seconds=120)
    assert engine_task(world).benchmark_backends is None
    world.is_too_late("benchmark", of="engine")
    (engine,) = world.all("InferenceEngine")
    assert engine["status"]["failure"]["lasting"], "the engine alone takes too long"
    first = prepare(build={}).misses().is_too_late("benchmark", of="engine")
    (engine,) = first.all("InferenceEngine")
    assert engine["status"]["failure"]["lasting"]


def test_attempts_that_end_in_the_benchmark_every_other_time_end() -> None:
    world = prepare().misses()
    for _ in range(2):
        world.is_too_late("benchmark", of="engine").later(seconds=3700)
        (engine,) = world.all("InferenceEngine")
        assert "lasting" not in engine["status"]["failure"]
        world.job_fails(Reason.STORE_UNAVAILABLE, "publish-engine", of="engine").later(seconds=3700)
    world.is_too_late("benchmark", of="engine")
    (engine,) = world.all("InferenceEngine")
    assert engine["status"]["failure"]["lasting"]
    assert "given up after 5 attempts" in engine["status"]["failure"]["message"]


def test_engine_records_the_benchmarks() -> None:
    reported = (
        PublishedBackend(backend="tensorrt", shapes="opt", p50=0.003, p99=0.0041),
        PublishedBackend(backend="cuda", shapes="opt", p50=0.0021, p99=0.003),
        PublishedBackend(backend="cpu", excluded="ParityFailed: output y"),
    )
    world = prepare().misses().succeeds("engine", nodes_accelerated=415, backends=reported)
    (engine,) = world.all("InferenceEngine")
    assert engine["status"]["engine"]["backends"] == [
        {
            "backend": "tensorrt",
            "shapes": "opt",
            "p50Microseconds": 3000,
            "p99Microseconds": 4100,
        },
        {"backend": "cuda", "shapes": "opt", "p50Microseconds": 2100, "p99Microseconds": 3000},
        {"backend": "cpu", "excluded": "ParityFailed: output y"},
    ]
    assert backends(world) == {"l4": "cuda"}


# which one serves


# event: Jobs | another backend is faster than the engine, with `spec.build.choose: Fastest` | what served before, until
#   the pods of the fastest have passed | Event `BackendChosen`, `status.choices`
def test_the_fastest_backend_serves_by_the_usual_rollout() -> None:
    world = compare(ms("tensorrt", 3), ms("cuda", 2.1), exclude("cpu", "no memory"))
    asked = tasks(world)["l4"]
    assert (asked.backend, asked.engine_key, asked.prepared_key) == ("cuda", None, "a" * 64)
    assert asked.promise.asked_backend is None, "it is no fallback"
    (deployment,) = world.serving_deployments()
    server = deployment["spec"]["template"]["spec"]["containers"][0]
    assert server["image"] == GPU_IMAGE
    assert server["resources"]["limits"]["nvidia.com/gpu"] == "1"
    world.all_available()
    assert world.conditions()["Ready"] == ("True", "Serving")
    why = "cuda: 2.1 ms, tensorrt: 3 ms"
    assert choices(world) == {"l4": ("cuda", f"{why}; cpu cannot serve: no memory")}
    assert world.status["summary"]["choice"] == why
    assert world.status["summary"]["backend"] == "cuda"
    (event,) = [intent for intent in world.events if intent.reason == "BackendChosen"]
    assert event.message.startswith(f"cuda on class l4: {why}")
    world.operator_restarts()
    assert world.event_reasons().count("BackendChosen") == 1


@pytest.mark.parametrize(
    ("benchmarks", "fastest"),
    [
        ([ms("tensorrt", 1), ms("cuda", 0.96)], "tensorrt"),  # noise
        ([ms("tensorrt", 1), ms("cuda", 0.94)], "cuda"),
        ([ms("tensorrt", 1), ms("cuda", 0.9), ms("cpu", 0.88)], "cuda"),  # listed before
        ([ms("tensorrt", 1), ms("cuda", 0.9), ms("cpu", 0.5)], "cpu"),
        ([ms("tensorrt", 1), exclude("cuda", "it crashed")], "tensorrt"),
    ],
)
def test_faster_backend_serves_beyond_the_margin(
    benchmarks: list[dict[str, Any]], fastest: str
) -> None:
    world = compare(*benchmarks).all_available()
    assert backends(world) == {"l4": fastest}
    assert (tasks(world)["l4"].engine_key is None) == (fastest != "tensorrt")
    assert choices(world)["l4"][0] == fastest


def test_a_backend_on_processors_takes_no_device() -> None:
    world = compare(ms("tensorrt", 1), ms("cpu", 0.5))
    (deployment,) = world.serving_deployments()
    pod = deployment["spec"]["template"]["spec"]
    assert "nvidia.com/gpu" not in str([item["resources"] for item in pod["containers"]])
    assert pod["nodeSelector"] == {"nvidia.com/gpu.product": "NVIDIA-L4"}


def test_each_class_has_its_own_choice() -> None:
    a100 = accelerator_class("a100", *BACKENDS, resourceName="nvidia.com/gpu")
    world = prepare(None, a100, accelerators=[{"class": "l4"}, {"class": "a100"}])
    world.engine_built(backends=[ms("tensorrt", 3), ms("cuda", 2)])
    for engine in world.all("InferenceEngine"):
        if engine["spec"]["class"] == "a100":
            engine["status"]["engine"]["backends"] = [ms("tensorrt", 1), ms("cuda", 2)]
    world.settle().all_available()
    assert backends(world) == {"l4": "cuda", "a100": "tensorrt"}
    assert world.status["summary"]["choice"] == (
        "l4 cuda: 2 ms, tensorrt: 3 ms; a100 tensorrt: 1 ms, cuda: 2 ms"
    )


def test_the_order_alone_decides_by_default() -> None:
    world = compare(ms("tensorrt", 3), ms("cuda", 2), build={}).all_available()
    assert backends(world) == {"l4": "tensorrt"}
    assert "choices" not in world.status
    assert "choice" not in world.status["summary"]
    assert "BackendChosen" not in world.event_reasons()


def test_a_choice_ends_with_the_field() -> None:
    world = compare(ms("tensorrt", 3), ms("cuda", 2)).all_available()
    world.edit(build={}).all_available()
    assert backends(world) == {"l4": "tensorrt"}
    assert "choices" not in world.status
    world.edit(build=FASTEST).all_available()
    assert backends(world) == {"l4": "cuda"}


def test_a_backend_that_is_not_listed_any_more_does_not_serve() -> None:
    world = compare(ms("tensorrt", 3), ms("cuda", 2), ms("cpu", 2.5)).all_available()
    world.edit(backends=["tensorrt", "cpu"]).all_available()
    assert backends(world) == {"l4": "cpu"}
    assert choices(world)["l4"] == ("cpu", "cpu: 2.5 ms, tensorrt: 3 ms")


def test_chosen_backend_serves_once_it_has_passed() -> None:
    world = compare(
        ms("tensorrt", 3), ms("cuda", 2), build={}, rollout={"canary": {"replicas": 1}}
    ).all_available()
    world.edit(build=FASTEST, rollout={"canary": {"replicas": 1}})
    assert backends(world) == {"l4": "tensorrt"}
    (canary,) = world.canaries()
    server = canary["spec"]["template"]["spec"]["containers"][0]
    assert '"backend":"cuda"' in str(server["env"])


# what fails


# fault: Engines | the chosen backend fails in pods and is tried again and again | its revision is recorded in
#   `status.failedChoice`, and the engines serve | when it is rejected
# event: Rollouts | pods of the backend that `spec.build.choose: Fastest` has chosen fail | what served before, then the
#   engines | `status.failedChoice`, Event `BackendChosen`
def test_engines_serve_if_the_chosen_one_fails_beside_them() -> None:
    world = compare(ms("tensorrt", 3), ms("cuda", 2), build={}).all_available()
    world.edit(build=FASTEST)
    assert backends(world) == {"l4": "cuda"}
    world.new_pod_fails(Reason.PARITY_FAILED).all_available()
    assert backends(world) == {"l4": "tensorrt"}
    assert world.conditions()["Ready"] == ("True", "Serving")
    failed = world.status["failedChoice"]
    assert failed["reason"] == "ParityFailed"
    backend, why = choices(world)["l4"]
    assert backend == "tensorrt"
    assert f"revision {failed['revision']} with cuda failed: " in why
    assert world.event_reasons().count("BackendChosen") == 2
    world.operator_restarts().later(seconds=3600)
    assert backends(world) == {"l4": "tensorrt"}
    assert world.event_reasons().count("BackendChosen") == 2, "it is not tried again"


def test_engines_serve_if_the_chosen_one_fails_as_the_first_revision() -> None:
    world = compare(ms("tensorrt", 3), ms("cuda", 2))
    world.new_pod_fails(Reason.PARITY_FAILED)
    assert backends(world) == {"l4": "tensorrt"}
    assert world.status["failedChoice"]["reason"] == "ParityFailed"
    world.all_available()
    assert world.conditions()["Ready"] == ("True", "Serving")


def test_a_failed_choice_rejects_no_backend() -> None:
    world = compare(ms("tensorrt", 3), ms("cuda", 2), fallback={"policy": "Allow"})
    world.new_pod_fails(Reason.PARITY_FAILED)
    world.all_available()
    assert backends(world) == {"l4": "tensorrt"}
    assert "rejectedBackends" not in world.status
    assert tasks(world)["l4"].promise.asked_backend is None


def test_another_spec_is_another_chance() -> None:
    world = compare(ms("tensorrt", 3), ms("cuda", 2))
    world.new_pod_fails(Reason.PARITY_FAILED)
    world.all_available()
    world.edit(serving={"maxQueue": 7}).all_available()
    assert backends(world) == {"l4": "cuda"}
    assert "failedChoice" not in world.status


def test_user_promotes_a_failed_choice() -> None:
    world = compare(ms("tensorrt", 3), ms("cuda", 2))
    world.new_pod_fails(Reason.PARITY_FAILED)
    world.all_available()
    failed = world.status["failedChoice"]["revision"]
    decided = promote(InferenceModel.model_validate(world.model), world.facts().revisions)
    assert decided.annotations["enginewright.dev/promote"] == failed
    world.annotate("enginewright.dev/promote", failed).settle().all_available()
    assert backends(world) == {"l4": "cuda"}
    assert world.conditions()["Ready"] == ("True", "Serving")


def test_user_rolls_back_a_choice() -> None:
    world = compare(ms("tensorrt", 3), ms("cuda", 2), build={}).all_available()
    world.edit(build=FASTEST).all_available()
    chosen = world.status["serving"]["revision"]
    world.annotate("enginewright.dev/rollback", chosen).settle().all_available()
    assert backends(world) == {"l4": "tensorrt"}
    assert "failedChoice" not in world.status
    assert world.conditions()["RolledBack"] == ("True", "RolledBackByUser")


# what is not compared


def test_engines_without_a_comparison_serve_and_say_so() -> None:
    world = compare().all_available()
    assert backends(world) == {"l4": "tensorrt"}
    backend, why = choices(world)["l4"]
    assert backend == "tensorrt"
    assert why == "tensorrt; not compared with cuda, cpu: its engine was built without that"
    assert world.status["summary"].get("choice", "") == ""


def test_an_engine_built_without_a_device_is_compared_with_nothing() -> None:
    world = World(backends=["tensorrt-rtx", "cuda"], build=FASTEST).has_gpus()
    world.settle().job_succeeds()
    assert engine_task(world).benchmark_backends is None
    world.engine_built().all_available()
    assert "built ahead of time" in choices(world)["l4"][1]
    assert backends(world) == {"l4": "tensorrt-rtx"}


def test_an_image_that_runs_no_other_backend_compares_nothing() -> None:
    world = World(backends=["tensorrt-rtx", "cuda"], build=FASTEST).has_gpus(aheadOfTime=False)
    world.settle().job_succeeds().misses()
    assert engine_task(world).benchmark_backends is None
    world.engine_built().all_available()
    assert "no other backend of spec.backends runs this model" in choices(world)["l4"][1]


def test_processors_serve_only_with_the_version_that_was_measured() -> None:
    world = prepare()
    cpu = world.config.images["cpu"]
    world.images = {**world.images, cpu: image_facts("cpu", "1.30.0")}
    world.engine_built(backends=[ms("tensorrt", 3), ms("cpu", 1)]).all_available()
    assert backends(world) == {"l4": "tensorrt"}
    assert "the model is verified with ONNX Runtime 1.31.1" in choices(world)["l4"][1]


def test_a_backend_without_engines_is_refused() -> None:
    world = World(build=FASTEST).settle()
    assert world.conditions()["Stalled"] == ("True", "BackendNotAllowed")
    assert "write tensorrt or tensorrt-rtx first in spec.backends" in world.message()
    listed = World(build=FASTEST, backends=["cuda", "cpu"])
    listed.classes = [l4(backends=["cuda", "cpu"])]
    listed.config = replace(listed.config, images={**listed.config.images, "gpu": GPU_IMAGE})
    assert listed.settle().conditions()["Stalled"] == ("True", "BackendNotAllowed")


# beside other moves


def test_an_interim_gives_way_to_the_fastest() -> None:
    build = {"choose": "Fastest", "interim": "CPU"}
    world = prepare(build=build).all_available()
    assert world.status["summary"]["backend"] == "cpu (interim)"
    world.engine_built(backends=[ms("tensorrt", 3), ms("cuda", 2)]).all_available()
    assert backends(world) == {"l4": "cuda"}
    (event,) = [intent for intent in world.events if intent.reason == "InterimEnded"]
    assert "serves on cuda in place of the interim" in event.message


def test_choice_serves_while_the_next_engine_is_built() -> None:
    world = compare(ms("tensorrt", 3), ms("cuda", 2)).all_available()
    before = world.status["serving"]["revision"]
    world.edit(build={**FASTEST, "optimizationLevel": 5})
    assert world.status["serving"]["revision"] == before
    assert backends(world) == {"l4": "cuda"}
    assert choices(world)["l4"][0] == "cuda"
    world.engine_built(backends=[ms("tensorrt", 1), ms("cuda", 2)]).all_available()
    assert backends(world) == {"l4": "tensorrt"}


@pytest.mark.parametrize("fastest", ["cuda", "cpu"])
def test_choice_and_its_engine_move_to_other_images(fastest: str) -> None:
    world = compare(ms("tensorrt", 3), ms(fastest, 2)).all_available()
    before = world.status["serving"]["revision"]
    world.turn = False
    with_new_gpu_image(world)
    assert world.status["images"]["state"] == "Waiting"
    assert (world.status["serving"]["revision"], len(world.running_jobs())) == (before, 0)
    world.turn = True
    world.settle()
    assert world.status["images"]["state"] == "Moving"
    assert backends(world) == {"l4": fastest}
    world.job_succeeds().misses()
    assert len(world.all("InferenceEngine")) == 2
    world.engine_built(backends=[ms("tensorrt", 1), ms(fastest, 2)]).all_available()
    assert backends(world) == {"l4": "tensorrt"}
    assert world.status["images"]["state"] == "Moved"
    assert choices(world)["l4"][0] == "tensorrt"


# what is not known for a while


# fault: Engines | the image of the chosen backend cannot be probed for a while, as after it was replaced | the choice before
#   holds, and what has failed stays failed | while the image is not probed
@pytest.mark.parametrize("failure", ["", "ErrImagePull"])
@pytest.mark.parametrize("strategy", ["Recreate", "InPlace"])
def test_a_choice_holds_while_its_image_is_not_probed(strategy: str, failure: str) -> None:
    world = compare(ms("tensorrt", 3), ms("cpu", 1), rollout={"strategy": strategy})
    world.all_available()
    serving, before = world.status["serving"]["revision"], choices(world)
    images = world.images
    remove_probe(world, failure).settle().all_available()
    assert (world.status["serving"]["revision"], choices(world)) == (serving, before)
    assert backends(world) == {"l4": "cpu"}
    world.images, world.image_failures = images, {}
    world.settle().all_available()
    assert (world.status["serving"]["revision"], choices(world)) == (serving, before)
    assert world.event_reasons().count("BackendChosen") == 1


@pytest.mark.parametrize("failure", ["", "ErrImagePull"])
def test_failed_choice_stays_failed_while_its_image_is_not_probed(failure: str) -> None:
    world = compare(ms("tensorrt", 3), ms("cpu", 1))
    world.new_pod_fails(Reason.PARITY_FAILED).all_available()
    failed = world.status["failedChoice"]
    images = world.images
    remove_probe(world, failure).settle()
    assert world.status["failedChoice"] == failed
    world.images, world.image_failures = images, {}
    world.settle().all_available()
    assert (world.status["failedChoice"], backends(world)) == (failed, {"l4": "tensorrt"})


def test_the_first_choice_waits_for_the_probe() -> None:
    world = prepare()
    images, image = world.images, world.config.images["cpu"]
    remove_probe(world).engine_built(backends=[ms("tensorrt", 3), ms("cpu", 1)])
    assert world.conditions()["Ready"] == ("False", "ProbingImage")
    assert world.message() == f"probing the runtime image {image} for its opsets and backends"
    assert world.serving_deployments() == []
    world.images = images
    world.settle().all_available()
    assert backends(world) == {"l4": "cpu"}
    assert world.event_reasons().count("BackendChosen") == 1


def test_choice_does_not_wait_for_the_probe_of_a_slower_backend() -> None:
    world = prepare()
    image = world.config.images["cpu"]
    world.images = {key: images for key, images in world.images.items() if key != image}
    world.engine_built(backends=[ms("tensorrt", 3), ms("cpu", 4)]).all_available()
    assert backends(world) == {"l4": "tensorrt"}


def test_a_model_is_served_if_the_image_of_a_compared_backend_cannot_be_probed() -> None:
    world = prepare()
    image = world.config.images["cpu"]
    world.images = {key: images for key, images in world.images.items() if key != image}
    world.image_failures = {image: "ErrImagePull"}
    world.engine_built(backends=[ms("tensorrt", 3), ms("cpu", 1)]).all_available()
    assert backends(world) == {"l4": "tensorrt"}
    assert "cannot probe the runtime image" in choices(world)["l4"][1]


@pytest.mark.parametrize("reason", [Reason.SECRET_UNUSABLE, Reason.STORE_UNAVAILABLE])
def test_a_failure_of_the_store_or_a_secret_gives_no_choice_up(reason: Reason) -> None:
    world = compare(ms("tensorrt", 3), ms("cuda", 1)).new_pod_fails(reason)
    world.later(seconds=3600).operator_restarts()
    assert "failedChoice" not in world.status
    assert backends(world) == {"l4": "cuda"}
    world.all_available()
    assert world.conditions()["Ready"] == ("True", "Serving")


def two_classes(**spec: Any) -> World:
    """Return a model whose first revision serves cuda on l4, as chosen, and the engine on a100."""
    a100 = accelerator_class("a100", *BACKENDS, resourceName="nvidia.com/gpu")
    world = prepare(None, a100, accelerators=[{"class": "l4"}, {"class": "a100"}], **spec)
    build_engines(world, lambda engine: 2 if engine["spec"]["class"] == "l4" else 4)
    assert backends(world) == {"l4": "cuda", "a100": "tensorrt"}
    return world


def build_engines(world: World, cuda: Callable[[dict[str, Any]], float]) -> None:
    """Have each engine be built; tensorrt has a median of 3 ms."""
    for engine in world.all("InferenceEngine"):
        median = cuda(engine)
        engine["status"] = {
            "engine": {**BUILT, "backends": [ms("tensorrt", 3), ms("cuda", median)]},
        }
    world.settle()


def crash(world: World, accelerator_class: str) -> None:
    for serving_deployment in world.serving_deployments():
        if serving_deployment["metadata"]["labels"]["enginewright.dev/class"] == accelerator_class:
            world.crash(serving_deployment["metadata"]["name"], reason=Reason.PARITY_FAILED)
    world.settle()


def test_a_class_that_chose_nothing_gives_no_choice_up() -> None:
    world = two_classes()
    crash(world, "a100")
    assert "failedChoice" not in world.status
    assert choices(world)["l4"][0] == "cuda"
    other = two_classes()
    crash(other, "l4")
    assert other.status["failedChoice"]["reason"] == "ParityFailed"
    assert backends(other) == {"l4": "tensorrt", "a100": "tensorrt"}


def test_no_part_of_a_failed_choice_is_tried_while_an_image_is_not_probed() -> None:
    a100 = accelerator_class("a100", *BACKENDS, resourceName="nvidia.com/gpu")
    world = prepare(None, a100, accelerators=[{"class": "l4"}, {"class": "a100"}])
    cpu_on_l4 = {
        "l4": [ms("tensorrt", 3), ms("cpu", 1)],
        "a100": [ms("tensorrt", 3), ms("cuda", 1)],
    }
    for engine in world.all("InferenceEngine"):
        engine["status"] = {
            "engine": {**BUILT, "backends": cpu_on_l4[engine["spec"]["class"]]},
        }
    world.settle()
    assert backends(world) == {"l4": "cpu", "a100": "cuda"}
    crash(world, "l4")
    failed = world.status["failedChoice"]
    engines_serve = {"l4": "tensorrt", "a100": "tensorrt"}
    assert backends(world.all_available()) == engines_serve
    images = world.images
    remove_probe(world).settle().all_available()
    assert (backends(world), world.status["failedChoice"]) == (engines_serve, failed)
    world.images = images
    world.settle().all_available()
    assert (backends(world), world.status["failedChoice"]) == (engines_serve, failed)


def test_the_engines_are_tried_if_another_backend_may_follow_them() -> None:
    world = two_classes(fallback={"policy": "Allow"})
    crash(world, "a100")
    assert world.status["failedChoice"]["message"].startswith("on class a100: ")
    assert backends(world) == {"l4": "tensorrt", "a100": "tensorrt"}


def test_choice_ends_with_the_backend_of_its_engines() -> None:
    world = compare(ms("tensorrt", 3), ms("cuda", 2), fallback={"policy": "Allow"})
    world.new_pod_fails(Reason.PARITY_FAILED)
    assert "failedChoice" in world.status
    world.new_pod_fails(Reason.PARITY_FAILED)
    if world.running_jobs():
        world.job_succeeds()
    world.all_available()
    assert backends(world) == {"l4": "cuda"}
    assert {"choices", "failedChoice"}.isdisjoint(world.status)
    assert world.status["summary"].get("choice", "") == ""


# beside moves to other images


def with_new_gpu_image(world: World) -> World:
    newer = world.images[GPU_IMAGE].model_copy(
        update={"backends": {"tensorrt": "10.10.0", "cuda": "13", "cpu": "1.31.1"}}
    )
    return world.new_runtime_image("registry.example/gpu:2", "gpu", like=newer)


# fault: Engines | `spec.build.choose` changes to `First` while a chosen backend serves, and the model waits for its turn
#   to move to new images | the engines are held on the model's own images | prevented
def test_the_end_of_a_choice_does_not_bypass_the_turn_to_move() -> None:
    world = compare(ms("tensorrt", 3), ms("cpu", 1)).all_available()
    world.turn = False
    with_new_gpu_image(world)
    assert world.status["images"]["state"] == "Waiting"
    world.edit(build={})
    assert world.running_jobs() == []
    world.all_available()
    assert backends(world) == {"l4": "tensorrt"}
    (deployment,) = world.serving_deployments()
    server = deployment["spec"]["template"]["spec"]["containers"][0]
    assert server["image"] == GPU_IMAGE
    assert world.status["images"]["state"] == "Waiting"


@pytest.mark.parametrize("before", [2.0, 3.0])  # ms of cuda, with the image before
def test_engines_move_to_new_images_if_the_choice_fails(before: float) -> None:
    world = compare(ms("tensorrt", 3), ms("cuda", before))
    if before < 3:
        world.new_pod_fails(Reason.PARITY_FAILED)
    world.all_available()
    assert backends(world) == {"l4": "tensorrt"}
    old = {entry["metadata"]["name"] for entry in world.all("InferenceEngine")}
    with_new_gpu_image(world).job_succeeds().misses()
    build_engines(world, lambda engine: before if engine["metadata"]["name"] in old else 2)
    assert backends(world) == {"l4": "cuda"}
    world.new_pod_fails(Reason.PARITY_FAILED)
    assert world.status["images"]["state"] == "Moving"
    world.all_available()
    assert world.status["images"]["state"] == "Moved"
    assert world.status["failedChoice"]["reason"] == "ParityFailed"
    (deployment,) = world.serving_deployments()
    server = deployment["spec"]["template"]["spec"]["containers"][0]
    assert (server["image"], backends(world)) == ("registry.example/gpu:2", {"l4": "tensorrt"})
    world.later(seconds=7200).operator_restarts()
    assert world.status["images"]["state"] == "Moved"
