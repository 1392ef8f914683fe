"""Names, addresses and marks that keep clusters, and their nodes, apart."""

from pathlib import Path

import pytest
from driver import cli, layout, network
from driver.layout import Cluster, Gpus, Settings
from driver.members import is_marked


def test_nodes_share_no_address_and_no_pod_range() -> None:
    nodes = [Cluster("x").node(index) for index in range(1, 10)]
    addresses = {layout.HUB_ADDRESS, *(node.address for node in nodes)}
    assert len(addresses) == 10
    assert len({node.pod_range for node in nodes}) == 9
    assert len({node.cgroup for node in nodes}) == 9


def test_pods_of_a_node_get_its_range() -> None:
    plugins = network.pod_network(Cluster("x").node(3))["plugins"]
    assert "198.18.3.0/24" in str(plugins)


@pytest.mark.parametrize(
    ("names", "result"),
    [
        (["ew-x", "ew-x-1", "ew-x-12"], ["ew-x", "ew-x-1", "ew-x-12"]),
        (["ew-x1", "ew-xy", "ew-x-a", "other"], []),
    ],
)
def test_a_cluster_knows_its_namespaces_from_anothers(
    names: list[str], result: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in names:
        (tmp_path / name).touch()
    monkeypatch.setattr(network, "_NETNS", tmp_path)
    assert network.namespaces(Cluster("x")) == result


@pytest.mark.parametrize(
    ("command", "marked"),
    [
        ("/c/kube kubelet --config /var/lib/e/x/node-1/kubelet.json", True),
        ("/c/kube forward tcp:127.0.0.1:1 unix:/var/lib/e/x/api.sock", True),
        ("/usr/bin/containerd-shim-runc-v2 -id a -address /var/lib/e/x/node-1/c.sock", True),
        ("/c/kube kubelet --config=/var/lib/e/x/kubelet.json", True),
        ("/c/kube kubelet --config /var/lib/e/xy/node-1/kubelet.json", False),
        ("/c/kube kubectl --kubeconfig /var/lib/e/x/kubeconfig get pods", False),
        ("tail -f /var/lib/e/x/logs/etcd.log", False),
        ("vim /var/lib/e/x/settings.json", False),
        ("", False),
    ],
)
def test_a_process_is_ours_by_program_and_argument(command: str, marked: bool) -> None:
    assert is_marked(command.split(" "), Path("/var/lib/e/x")) is marked


@pytest.mark.parametrize(
    ("arguments", "ours", "theirs"),
    [
        ("kubectl -n x get pods --name y", "kubectl", "-n x get pods --name y"),
        ("--name t kubectl get pods", "--name t kubectl", "get pods"),
        ("--name=t helm --help", "--name=t helm", "--help"),
        ("up --name kubectl", "up --name kubectl", ""),
        ("--name helm status", "--name helm status", ""),
        ("", "", ""),
    ],
)
def test_arguments_after_kubectl_are_kubectls(arguments: str, ours: str, theirs: str) -> None:
    assert cli.split_tool(arguments.split()) == (ours.split(), theirs.split())


@pytest.mark.parametrize("name", ["X", "1a", "a" * 21, "a-b", "../a", ""])
def test_invalid_names_are_refused(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--name", name, "status"]) == 1
    assert "lower-case letters and digits" in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [["status"], ["env"], ["logs"], ["kubectl", "get", "pods"]])
def test_missing_cluster_is_reported(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["--name", "nosuchcluster", *arguments]) == 1
    assert "the cluster 'nosuchcluster' does not exist; run `up` first" in capsys.readouterr().err


def test_settings_are_read_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layout, "STATE_ROOT", tmp_path)
    cluster = Cluster("x")
    assert cluster.read_settings() is None
    cluster.folder.mkdir()
    settings = Settings(2, 16443, (Gpus(2, "l4", None, 1),), "abc")
    cluster.write_settings(settings)
    assert cluster.read_settings() == settings
