"""`enginewright explain`, `placement`, `diff`, `logs`, `bundle`, `watch` and `upload` against a real API server.

No operator and no kubelet run: the tests write what these would.
"""

import hashlib
import json
import os
import sys
import tarfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from subprocess import PIPE, Popen
from typing import Any

import pytest
import yaml
from driver.layout import Cluster

from tests.apiserver.test_cli_plan import reader
from tests.apiserver.test_cli_rollout import GOOD, NAME, NEW, Desk, condition, desk
from tests.apiserver.test_pods_through_proxy import ADDRESS, VERDICT, PodServer, server
from tests.apiserver.world import World, model
from tests.e2e.harness import Namespace, eventually
from tests.support import simulated_cluster as played
from tests.support.plan_objects import make_object
from tests.support.programs import run_program

pytestmark = pytest.mark.apiserver
__all__ = ["desk", "server"]  # fixtures

FAILED = condition("Ready", "False", "DigestMismatch")
STALLED = condition("Stalled", "True", "DigestMismatch")
# what the readiness probe of the pod would wait for
LISTENS = """
import socket, sys, time
while True:
    try:
        socket.create_connection((sys.argv[1], 8080), 5).close()
        break
    except OSError:
        time.sleep(0.05)
"""


def test_what_is_wrong_is_explained_with_verdicts(desk: Desk, server: PodServer) -> None:
    played.add_account(desk.namespace)
    desk.run_pod("stable", GOOD)
    check = {"check": "placement", "state": "failed", "reason": "ProviderMissing", "message": "x"}
    server.say(json.dumps({**VERDICT, "revision": GOOD, "ready": False, "checks": [check]}))
    desk.status(active={"revision": GOOD}, conditions=[condition("Ready", "True", "Serving")])

    def find_cause() -> dict[str, Any]:
        _, shown = desk.run("explain", NAME, "-o", "json")
        explanation: dict[str, Any] = json.loads(shown)
        return explanation if explanation.get("cause") else {}

    explanation = eventually(find_cause, 30, "the verdict")
    assert (explanation["state"], explanation["cause"]["reason"]) == ("impaired", "ProviderMissing")
    code, shown = desk.run("placement", NAME, "-o", "yaml")
    (pod,) = yaml.safe_load(shown)["pods"]
    assert (code, pod["pod"], pod["state"]) == (0, "stable", "failed")
    code, shown = desk.run("logs", NAME)
    assert (code, "no container of InferenceModel m has run" in shown) == (2, True), shown


def test_revisions_are_compared(desk: Desk) -> None:
    code, shown = desk.run("diff", NAME)
    assert (code, GOOD in shown, NEW in shown) == (0, True, True), shown
    assert "example.com/cpu:2" in shown
    assert "example.com/cpu:3" in shown
    code, shown = desk.run("diff", NAME, "--revision", "nosuch")
    assert (code, "revision nosuch is unknown; known revisions:" in shown) == (2, True), shown


def test_half_of_the_rights_and_nothing_at_all(world: World, tmp_path: Path) -> None:
    desk = Desk(world.user)
    code, shown = desk.run("explain", "nosuch")
    assert (code, "there are none" in shown) == (2, True), shown
    code, shown = desk.run("watch")
    assert (code, shown.strip()) == (0, "0 models")
    world.user.apply(model())
    desk.status(conditions=[FAILED, STALLED])
    rules = [{"apiGroups": ["enginewright.dev"], "resources": ["inferencemodels"]}]
    some = reader(world, "some", rules)
    code, shown = desk.run("explain", NAME, kubeconfig=some)
    assert (code, "remedy: set spec.source.sha256" in shown) == (1, True), shown
    assert "note: you may not read " in shown
    stranger = reader(world, "stranger", [])
    code, shown = desk.run("explain", NAME, kubeconfig=stranger)
    assert (code, "you may read nothing" in shown) == (2, True), shown
    archive = tmp_path / "a.tar.gz"
    code, shown = desk.run("bundle", NAME, "--file", str(archive), kubeconfig=some)
    assert (code, "note: you may not read " in shown) == (0, True), shown
    with tarfile.open(archive) as packed:
        names = {name.partition("/")[2] for name in packed.getnames()}
    assert {"objects/inferencemodels.yaml", "explanation.json", "versions.json"} <= names
    code, shown = desk.run("watch")
    assert (code, "DigestMismatch" in shown) == (0, True), shown


class PlayedPod:
    """Runs the command of an upload's pod as its container would, and has the kubelet say so."""

    def __init__(self, namespace: Namespace, cluster: Cluster, claim: Path) -> None:
        self._namespace = namespace
        self._cluster = cluster
        self._claim = claim

    def start(self) -> "Popen[bytes]":
        (pod,) = eventually(lambda: self._namespace.items("pods"), 30, "the pod", interval=0.1)
        (container,) = pod["spec"]["containers"]
        environment = {item["name"]: item["value"] for item in container["env"]}
        environment["UPLOAD_ROOT"] = str(self._claim)
        _, *arguments = container["command"]
        inside = ["nsenter", self._cluster.enter, "--"]
        process = Popen(
            [*inside, sys.executable, *arguments],
            env={**os.environ, **environment},
            stderr=PIPE,
        )
        run_program([*inside, sys.executable, "-c", LISTENS, ADDRESS], timeout=60)
        ready = {"type": "Ready", "status": "True", "lastTransitionTime": "2026-11-20T12:03:10Z"}
        status = {"phase": "Running", "podIP": ADDRESS, "podIPs": [{"ip": ADDRESS}]}
        status |= {"conditions": [ready]}
        self._namespace.patch("pod", pod["metadata"]["name"], {"status": status}, "status")
        return process


@pytest.mark.parametrize("before", [b"", b"other"])
def test_a_model_is_uploaded_to_a_claim(
    namespace: Namespace, kubeconfig: Path, tmp_path: Path, before: bytes
) -> None:
    """Into a new place, or not over other content."""
    played.add_account(namespace)
    spec = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
    namespace.create(make_object("PersistentVolumeClaim", "models", spec=spec))
    source, claim = tmp_path / "m.bin", tmp_path / "claim"
    source.write_bytes(os.urandom(3_000_000))
    (claim / "a").mkdir(parents=True)
    if before:
        (claim / "a/m.bin").write_bytes(before)
    desk = Desk(namespace)
    played_pod = PlayedPod(namespace, Cluster(kubeconfig.parent.name), claim)
    upload = ("upload", str(source), "pvc://models/a/", "--image", "example.com/cpu:1")
    with ThreadPoolExecutor() as threads:
        running = threads.submit(desk.run, *upload)
        process = played_pod.start()
        try:
            code, shown = running.result()
        finally:
            process.kill()
            process.communicate(timeout=10)
    if before:
        assert (code, "exists with other content" in shown) == (2, True), shown
        assert (claim / "a/m.bin").read_bytes() == before
    else:
        assert code == 0, shown
        assert (claim / "a/m.bin").read_bytes() == source.read_bytes()
        assert f"sha256 {hashlib.sha256(source.read_bytes()).hexdigest()[:12]} matches" in shown
        assert "uri: pvc://models/a/m.bin" in shown
    assert list((claim / "a").glob(".*")) == []
    eventually(lambda: not namespace.items("pods"), 30, "the pod to be removed")


def test_an_upload_names_claims_that_exist(namespace: Namespace, tmp_path: Path) -> None:
    source = tmp_path / "m.bin"
    source.write_bytes(b"x")
    code, shown = Desk(namespace).run("upload", str(source), "pvc://nosuch/m.bin")
    assert (code, "nosuch not found" in shown, "existing: none" in shown) == (2, True, True), shown
