"""The local cluster on the real machine: its commands, recovery from crashes, and complete removal."""

import hashlib
import io
import json
import os
import signal
import subprocess
import tarfile
import time
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.harness import Handle, start_and_kill, traces, until
from tests.support.plan_objects import make_object

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(1500)]  # the first `up` may build everything


def _pod(name: str, node: int | None, *arguments: str, **container: Any) -> dict[str, Any]:
    spec: dict[str, Any] = {
        "restartPolicy": "Always",
        "terminationGracePeriodSeconds": 0,
        "containers": [
            {"name": "c", "image": "localhost/test/probe:1", "args": [*arguments], **container}
        ],
    }
    if node is not None:
        spec["nodeName"] = f"node-{node}"
    return make_object("Pod", name, labels={"app": name}, spec=spec)


def _service(name: str) -> dict[str, Any]:
    ports = [{"port": 80, "targetPort": 8080}]
    return make_object("Service", name, spec={"selector": {"app": name}, "ports": ports})


def _not_running(cluster: Handle) -> list[str]:
    done = subprocess.run(cluster.command("status"), capture_output=True, text=True, check=False)
    return [line for line in done.stdout.splitlines() if "NOT" in line]


@pytest.fixture(scope="module")
def web(cluster: Handle) -> str:
    """A server on each node; `web` is the first, behind a Service."""
    ready = {"httpGet": {"path": "/", "port": 8080}, "periodSeconds": 1}
    cluster.apply(
        _pod("web", 1, "serve", ":8080", "/etc", readinessProbe=ready),
        _pod("far", 2, "serve", ":8080", "/etc", readinessProbe=ready),
        _service("web"),
    )
    cluster.wait("condition=Ready", "pod/web", "pod/far")
    return "web"


def test_traces_finds_every_kind(cluster: Handle) -> None:
    """Otherwise `traces(...) == []` would prove nothing."""
    remains = "\n".join(traces(cluster.name))
    for kind in (
        "/var/lib/enginewright/ewlife",
        "/run/netns/ew-ewlife-2",
        "/ew-ewlife-1",
        "kube\\x00kubelet",
        "containerd-shim",
    ):
        assert kind in remains


def test_up_again_starts_nothing(cluster: Handle) -> None:
    before = cluster.pids()
    cluster.run("up")
    assert cluster.pids() == before
    assert "NOT" not in cluster.run("status")


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--nodes", "3"], "was created with another --nodes"),
        (["--port", "1"], "was created with another --port"),
        (["--gpus", "1=t4:1"], "was created with another --gpus"),
        (["--gpus", "1=nosuch:1"], "unknown GPU 'nosuch'"),
    ],
)
def test_up_refuses_to_change_a_cluster(cluster: Handle, arguments: list[str], reason: str) -> None:
    assert reason in cluster.run("up", *arguments, ok=False)


def test_a_port_that_is_taken_is_refused(cluster: Handle, crashing: Handle) -> None:
    taken = cluster.run("status").rpartition("127.0.0.1:")[2].split()[0]
    assert f"port {taken} on 127.0.0.1 is in use" in crashing.run("up", "--port", taken, ok=False)


def test_pods_reach_pods_services_and_the_api(cluster: Handle, web: str) -> None:
    address = cluster.get("pod", web)["status"]["podIP"]
    name = cluster.probe("far", "get", f"http://{address}:8080/hostname").strip()
    assert name == "web"
    for client in ("far", "web"):  # the second reaches itself through its own Service
        assert cluster.probe(client, "get", "http://web.default/hostname").strip() == "web"
    assert '"gitVersion": "v1.36.' in cluster.probe("far", "api", "/version")


def test_connections_to_the_outside_fail_immediately(cluster: Handle, web: str) -> None:
    begun = time.monotonic()
    refusal = cluster.run(
        "kubectl", "exec", web, "--", "/probe", "dial", "203.0.113.9:80", ok=False
    )
    assert "no route to host" in refusal
    assert time.monotonic() - begun < 10


def test_logs_and_port_forward(cluster: Handle, web: str) -> None:
    assert cluster.kubectl("logs", "far").strip() == "serving"
    forward = subprocess.Popen(
        cluster.command("kubectl", "port-forward", "service/web", ":80"),
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        assert forward.stdout is not None
        port = forward.stdout.readline().split("127.0.0.1:")[1].split()[0]
        response = subprocess.run(
            ["curl", "--noproxy", "*", "--silent", f"http://127.0.0.1:{port}/hostname"],
            capture_output=True,
            text=True,
            check=True,
            timeout=20,
        )
        assert response.stdout.strip() == "web"
    finally:
        os.killpg(forward.pid, signal.SIGKILL)
        forward.wait()


def test_a_volume_is_shared_by_nodes_and_removed_with_its_claim(cluster: Handle) -> None:
    request = {"requests": {"storage": "1Mi"}}
    spec = {"accessModes": ["ReadWriteMany"], "resources": request}
    claim = make_object("PersistentVolumeClaim", "shared", spec=spec)
    pods = [_pod(f"user-{node}", node, "serve", ":8080", "/data") for node in (1, 2)]
    for pod in pods:
        pod["spec"]["securityContext"] = {"runAsUser": 1000, "runAsNonRoot": True}
        pod["spec"]["volumes"] = [
            {"name": "data", "persistentVolumeClaim": {"claimName": "shared"}}
        ]
        pod["spec"]["containers"][0]["volumeMounts"] = [{"name": "data", "mountPath": "/data"}]
    cluster.apply(claim, *pods)
    cluster.wait("condition=Ready", "pod/user-1", "pod/user-2")
    cluster.probe("user-1", "write", "/data/greeting", "hello")
    assert cluster.probe("user-2", "get", "http://127.0.0.1:8080/greeting") == "hello"
    folders = list((cluster.folder / "volumes").iterdir())
    assert [folder.joinpath("greeting").read_text() for folder in folders] == ["hello"]
    cluster.kubectl("delete", "pod", "user-1", "user-2", "--wait=true")
    cluster.kubectl("delete", "pvc", "shared", "--wait=true")
    until("the volume's removal", lambda: not folders[0].exists())


def _allocatable(cluster: Handle, node: int, resource: str) -> str | None:
    allocatable: dict[str, str] = cluster.get("node", f"node-{node}")["status"]["allocatable"]
    return allocatable.get(resource)


def test_devices_are_scheduled_and_survive_a_kubelet_crash(cluster: Handle) -> None:
    slices = {"limits": {"nvidia.com/mig-1g.10gb": "3"}}
    cluster.apply(
        _pod(
            "whole", None, "serve", ":8080", "/etc", resources={"limits": {"nvidia.com/gpu": "1"}}
        ),
        _pod("slices", None, "serve", ":8080", "/etc", resources=slices),
    )
    cluster.wait("condition=Ready", "pod/whole", "pod/slices")
    assert cluster.get("pod", "whole")["spec"]["nodeName"] == "node-1"
    assert cluster.get("pod", "slices")["spec"]["nodeName"] == "node-2"
    assert cluster.probe("slices", "environment").count("nvidia.com-mig-1g.10gb-") == 3
    labels = cluster.get("node", "node-2")["metadata"]["labels"]
    assert labels["nvidia.com/gpu.product"] == "NVIDIA-A100-SXM4-80GB"
    cluster.run("kill", "kubelet-2")
    assert any(line.startswith("kubelet-2 ") for line in _not_running(cluster))
    cluster.run("up")
    assert _allocatable(cluster, 2, "nvidia.com/mig-1g.10gb") == "7"
    assert _allocatable(cluster, 1, "nvidia.com/gpu") == "2"
    restarts = cluster.get("pod", "slices")["status"]["containerStatuses"][0]["restartCount"]
    assert restarts == 0


def test_crashed_processes_restart_under_running_pods(cluster: Handle, web: str) -> None:
    crashed = ["containerd-1", "etcd", "kube-apiserver", "kube-proxy-1"]
    crashed += ["api-outside", "api-inside"]
    for process in crashed:
        cluster.run("kill", process)
    assert {line.split()[0] for line in _not_running(cluster)} >= set(crashed)
    cluster.run("up")
    assert _not_running(cluster) == []
    assert cluster.reach("far", "http://web.default/hostname") == "web"
    statuses = cluster.get("pod", web)["status"]["containerStatuses"]
    assert [status["restartCount"] for status in statuses] == [0]


def test_a_node_that_lost_power_comes_back(cluster: Handle, web: str) -> None:
    cluster.run("kill", "node-1")
    cluster.run("up")

    def has_restarted() -> bool:
        status = cluster.get("pod", web)["status"]
        (container,) = status["containerStatuses"]
        return bool(container["restartCount"] == 1 and container["ready"] and status.get("podIP"))

    until("the pod's restart", has_restarted)
    assert cluster.reach("far", "http://web.default/hostname") == "web"


def test_metrics_are_served(cluster: Handle) -> None:
    def has_both() -> bool:
        done = subprocess.run(
            cluster.command("kubectl", "top", "nodes", "--no-headers"),
            capture_output=True,
            text=True,
            check=False,
        )
        return len(done.stdout.splitlines()) == 2

    until("figures of both nodes", has_both, 90)


def test_an_existing_image_is_not_loaded_again(cluster: Handle, probe: Path) -> None:
    cluster.run("load", probe)
    begun = time.monotonic()
    cluster.run("load", probe)
    assert time.monotonic() - begun < 5
    assert "is not an image archive" in cluster.run("load", Path(__file__), ok=False)


def _oci_archive(docker: Path, name: str, folder: Path) -> Path:
    """Return the single layer of a docker-archive as an oci-archive of another name, like buildah's."""
    with tarfile.open(docker) as tar:
        raw = {member.name: tar.extractfile(member).read() for member in tar}  # type: ignore[union-attr]  # files only
    config = next(content for entry, content in raw.items() if len(entry) > 64)

    def blob(kind: str, content: bytes) -> dict[str, Any]:
        digest = hashlib.sha256(content).hexdigest()
        files[f"blobs/sha256/{digest}"] = content
        kind = f"application/vnd.oci.image.{kind}"
        return {"mediaType": kind, "digest": f"sha256:{digest}", "size": len(content)}

    files = {"oci-layout": b'{"imageLayoutVersion": "1.0.0"}'}
    layers = [blob("layer.v1.tar", raw["layer.tar"])]
    manifest = {"schemaVersion": 2, "config": blob("config.v1+json", config), "layers": layers}
    entry = blob("manifest.v1+json", json.dumps(manifest).encode())
    entry["annotations"] = {"org.opencontainers.image.ref.name": name}
    files["index.json"] = json.dumps({"schemaVersion": 2, "manifests": [entry]}).encode()
    archive = folder / "oci.tar"
    with tarfile.open(archive, "w") as tar:
        for path, content in files.items():
            info = tarfile.TarInfo(path)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return archive


def test_an_image_with_a_short_name_is_usable_by_both_names(
    cluster: Handle, probe: Path, tmp_path: Path
) -> None:
    cluster.run("load", _oci_archive(probe, "probe:1", tmp_path))
    arguments = ("serve", ":8080", "/etc")
    cluster.apply(_pod("short", 1, *arguments, image="probe:1"), _pod("long", 1, *arguments))
    cluster.wait("condition=Ready", "pod/short", "pod/long")


def test_up_continues_after_its_driver_was_killed(cluster: Handle, crashing: Handle) -> None:
    folder = crashing.folder
    start_and_kill(crashing, Path("/run/netns/ew-ewcrash").exists)
    start_and_kill(crashing, (folder / "processes" / "etcd.json").exists)
    start_and_kill(crashing, (folder / "processes" / "containerd-1.json").exists)
    crashing.run("up")
    assert [node["metadata"]["name"] for node in crashing.get("nodes")["items"]] == ["node-1"]
    assert _not_running(crashing) == []
    # Removing one cluster does not affect another.
    crashing.run("down")
    assert traces("ewcrash") == []
    assert _not_running(cluster) == []
    cluster.apply(_pod("after", 1, "serve", ":8080", "/etc"))
    cluster.wait("condition=Ready", "pod/after")


def test_down_removes_what_a_crash_left(crashing: Handle) -> None:
    start_and_kill(crashing, (crashing.folder / "processes" / "kubelet-1.json").exists)
    for mark in (crashing.folder / "processes").iterdir():
        mark.unlink()  # as if the driver had been killed between a start and its record
    crashing.run("down")
    assert traces("ewcrash") == []


def test_the_control_plane_alone_keeps_its_data(crashing: Handle) -> None:
    crashing.run("up", "--control-plane-only")
    assert crashing.get("nodes")["items"] == []
    crashing.kubectl("create", "configmap", "kept")
    crashing.run("kill", "etcd")
    crashing.run("up", "--control-plane-only")
    assert crashing.get("configmap", "kept")["metadata"]["name"] == "kept"
