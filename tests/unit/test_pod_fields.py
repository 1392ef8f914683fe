"""What a model may say of its pods arrives in them, and changes nothing where it is not said."""

from dataclasses import replace
from typing import Any

import pytest
from enginewright_contract.task import ServeTask

from tests.support.plan_world import World


def deployment(**spec: Any) -> dict[str, Any]:
    return World(**spec).settle().job_succeeds().the("Deployment")


def pod(**spec: Any) -> dict[str, Any]:
    template: dict[str, Any] = deployment(**spec)["spec"]["template"]["spec"]
    return template


def containers(spec: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {item["name"]: item for item in (*spec["initContainers"], *spec["containers"])}


def variables(container: dict[str, Any]) -> dict[str, Any]:
    return {item["name"]: item.get("value") for item in container["env"]}


def startup_seconds(spec: dict[str, Any]) -> int:
    probe = containers(spec)["server"]["startupProbe"]
    return int(probe["periodSeconds"] * probe["failureThreshold"])


def test_a_server_may_take_as_long_to_start_as_its_owner_says() -> None:
    assert startup_seconds(pod()) == 600
    assert startup_seconds(pod(serving={"startupTimeout": "1h"})) == 3600


@pytest.mark.parametrize(
    ("spec", "seconds"),
    [
        ({}, 600),
        ({"serving": {"startupTimeout": "2m"}}, 600),
        ({"serving": {"startupTimeout": "1h"}}, 3600),
        ({"rollout": {"progressTimeout": "20m"}}, 1200),
        ({"rollout": {"progressTimeout": "20m"}, "serving": {"startupTimeout": "1h"}}, 3600),
        ({"rollout": {"progressTimeout": "1m"}, "serving": {"startupTimeout": "30s"}}, 60),
    ],
)
def test_rollout_deadline_follows_the_start_timeout(spec: dict[str, Any], seconds: int) -> None:
    assert deployment(**spec)["spec"]["progressDeadlineSeconds"] == seconds


def test_the_drain_ends_before_the_pod_does() -> None:
    def task(spec: dict[str, Any]) -> ServeTask:
        text = variables(containers(spec)["server"])["ENGINEWRIGHT_TASK"]
        return ServeTask.model_validate_json(text)

    assert pod()["terminationGracePeriodSeconds"] == 40
    assert task(pod()).drain_seconds is None
    longer = pod(serving={"terminationGracePeriod": "5m"})
    assert longer["terminationGracePeriodSeconds"] == 300
    assert task(longer).drain_seconds == 285


@pytest.mark.parametrize(
    "spec",
    [
        {"serving": {"startupTimeout": "10m"}},
        {"serving": {"terminationGracePeriod": "40s"}},
        {"rollout": {"progressTimeout": "2h"}},
    ],
)
def test_defaults_restart_no_pods(spec: dict[str, Any]) -> None:
    world = World().settle().job_succeeds().all_available()
    revision = world.status["revision"]
    world.edit(**spec).all_available()
    assert world.status["revision"] == revision
    assert world.conditions()["Ready"] == ("True", "Serving")


def test_server_and_sidecar_have_the_environment_that_is_asked_for() -> None:
    from_secret = {"secretKeyRef": {"name": "keys", "key": "a"}}
    spec = pod(
        podTemplate={"env": [{"name": "OMP_NUM_THREADS", "value": "4"}]},
        serving={"sidecar": {"env": [{"name": "KEY", "valueFrom": from_secret}]}},
    )
    by_name = containers(spec)
    assert variables(by_name["server"])["OMP_NUM_THREADS"] == "4"
    assert "OMP_NUM_THREADS" not in variables(by_name["sidecar"])
    assert by_name["sidecar"]["env"][-1] == {"name": "KEY", "valueFrom": from_secret}
    assert variables(by_name["fetch-artifact"]).keys() == {"ENGINEWRIGHT_TASK"}
    for entry in by_name.values():
        assert entry["env"][0]["name"] == "ENGINEWRIGHT_TASK"


def test_spreading_is_the_users_and_counts_the_pods_of_the_class() -> None:
    asked = {"topologyKey": "topology.kubernetes.io/zone", "whenUnsatisfiable": "DoNotSchedule"}
    constraint = {**asked, "maxSkew": 2, "minDomains": 3, "nodeTaintsPolicy": "Honor"}
    plain, rich = pod(podTemplate={"topologySpreadConstraints": [asked, constraint]})[
        "topologySpreadConstraints"
    ]
    assert plain.items() >= {**asked, "maxSkew": 1}.items()
    assert rich.items() >= constraint.items()
    for item in (plain, rich):
        assert item["labelSelector"]["matchLabels"]["enginewright.dev/class"] == "cpu"
        assert item["matchLabelKeys"] == ["pod-template-hash"]


def test_further_volumes_are_the_servers() -> None:
    volume = {"name": "data", "persistentVolumeClaim": {"claimName": "data", "readOnly": True}}
    mount = {"name": "data", "mountPath": "/data", "readOnly": True}
    spec = pod(podTemplate={"volumes": [volume], "volumeMounts": [mount]})
    assert volume in spec["volumes"]
    for name, container in containers(spec).items():
        assert (mount in container["volumeMounts"]) == (name == "server")


def test_the_init_container_has_the_servers_limits_and_no_device() -> None:
    asked = {
        "requests": {"cpu": "1", "memory": "2Gi"},
        "limits": {"cpu": "1", "memory": "2Gi", "nvidia.com/gpu": "1"},
    }
    fetch = containers(pod(podTemplate={"resources": asked}))["fetch-artifact"]
    assert fetch["resources"] == {
        "requests": {"cpu": "1", "memory": "2Gi"},
        "limits": {"cpu": "1", "memory": "2Gi"},
    }


def test_run_as_user_may_be_set() -> None:
    own = {"runAsUser": 1000, "fsGroup": 2000, "supplementalGroups": [3000]}
    context = pod(podTemplate={"securityContext": own})["securityContext"]
    assert context.items() >= {**own, "runAsNonRoot": True, "runAsGroup": 65532}.items()
    assert context["seccompProfile"] == {"type": "RuntimeDefault"}


def test_containers_may_differ_and_get_no_privileges() -> None:
    own = {"readOnlyRootFilesystem": False, "runAsUser": 1000}
    for container in containers(pod(podTemplate={"containerSecurityContext": own})).values():
        security = container["securityContext"]
        assert security.items() >= own.items()
        assert security["allowPrivilegeEscalation"] is False
        assert security["capabilities"] == {"drop": ["ALL"]}


@pytest.mark.parametrize("own", [{}, {"fsGroup": 2000}])
def test_where_the_cluster_assigns_users_no_pod_names_one(own: dict[str, int]) -> None:
    world = World(podTemplate={"securityContext": own}, build={"podTemplate": {}})
    world.config = replace(world.config, openshift=True)
    job = world.settle().job()
    serving = world.job_succeeds().the("Deployment")
    for entry, expected in ((job, {}), (serving, own)):
        security = entry["spec"]["template"]["spec"]["securityContext"]
        named = {name for name in ("runAsUser", "runAsGroup", "fsGroup") if name in security}
        assert named == expected.keys()
        assert security["runAsNonRoot"] is True


def test_jobs_run_as_the_user_that_is_chosen_for_them() -> None:
    template = {"securityContext": {"runAsUser": 1000, "fsGroup": 1000}}
    world = World(build={"podTemplate": template}).settle()
    engine = World.of_engine()
    engine.spec["podTemplate"] = template
    for job in (world.job(), engine.settle().job()):
        security = job["spec"]["template"]["spec"]["securityContext"]
        assert (security["runAsUser"], security["fsGroup"]) == (1000, 1000)


@pytest.mark.parametrize(
    "spec",
    [
        {"podTemplate": {"env": [{"name": "A", "value": "b"}]}},
        {"podTemplate": {"securityContext": {"runAsUser": 1000}}},
        {"serving": {"startupTimeout": "1h"}},
        {"serving": {"terminationGracePeriod": "5m"}},
        {"serving": {"sidecar": {"env": [{"name": "A", "value": "b"}]}}},
    ],
)
def test_template_change_is_another_revision(spec: dict[str, Any]) -> None:
    world = World().settle().job_succeeds().all_available()
    first = world.status["revision"]
    world.edit(**spec).all_available()
    assert world.status["revision"] != first
    world.edit(**dict.fromkeys(spec)).all_available()
    assert world.status["revision"] == first
