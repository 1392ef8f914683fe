"""One node: containerd, kubelet, kube-proxy and, with GPUs, a device plugin.

Kubelet, containerd's shims and the CNI plugins write to fixed paths such as /var/lib/kubelet. Each
node has its own mount namespace, in which /var is a folder of the node and /run a tmpfs, so several
nodes can share a machine without touching its files, and all mounts end with the node's processes.
"""

import json
import shutil
from collections.abc import Sequence
from pathlib import Path

from driver import cgroups, gpus, members, network
from driver.layout import DNS_ADDRESS, POD_RANGE, Gpus, Node
from driver.processes import Processes

PAUSE_IMAGE = "localhost/enginewright/pause:1"


def start_namespace(node: Node, pause: Path, processes: Processes) -> None:
    """Start the process that holds the node's mount namespace.

    Raises:
        ClusterError: The mounts failed.
    """
    name = f"namespace-{node.index}"
    if processes.alive(name):
        return
    # without this process, the old mount namespace can neither be entered nor repaired: the node
    # restarts as after a power cut
    members.end_node(node)
    for process_name in _process_names(node):
        processes.stop(process_name)
    shutil.rmtree(node.folder / "ipam", ignore_errors=True)
    for folder in ("cache", "lib", "log", "tmp"):
        (node.folder / "var" / folder).mkdir(parents=True, exist_ok=True)
    mounted = node.folder / "mounted"
    mounted.unlink(missing_ok=True)
    script = "\n".join([*private_mounts(node), f"touch '{mounted}'", f"exec '{pause}'"])
    processes.start(
        name,
        ["unshare", "--mount", "--propagation", "private", "sh", "-ec", script],
        enter=[f"--net=/run/netns/{node.namespace}"],
    )
    processes.wait(name, "its mounts", mounted.exists, 10)


def private_mounts(node: Node) -> list[str]:
    """Return the commands that mount a node's own /run and /var; the cluster's folder stays visible.

    Mounts at dedicated folders would not work: removing the folder, as another cluster's `down`
    might, unmounts it in every namespace.
    """
    cluster = node.cluster.folder
    return [
        "mount -t tmpfs -o mode=755 tmpfs /run",
        "mkdir /run/lock /run/cluster",
        f"mount --bind '{cluster}' /run/cluster",
        f"mount --bind '{node.folder}/var' /var",
        "ln -sfn /run /var/run",
        f"mkdir -p '{cluster}'",
        f"mount --bind /run/cluster '{cluster}'",
        "umount /run/cluster",
    ]


def _process_names(node: Node) -> list[str]:
    kinds = ("kubelet", "kube-proxy", "device-plugin", "containerd")
    return [f"{kind}-{node.index}" for kind in kinds]


def _enter(node: Node, processes: Processes) -> list[str]:
    pid = processes.pid(f"namespace-{node.index}")
    return [f"--net=/run/netns/{node.namespace}", f"--mount=/proc/{pid}/ns/mnt"]


def start_containerd(node: Node, processes: Processes) -> None:
    """Start the node's containerd and wait for its socket.

    Raises:
        ClusterError: It ended, or its socket does not appear in time.
    """
    node.folder.mkdir(parents=True, exist_ok=True)
    cni = node.folder / "cni"
    cni.mkdir(exist_ok=True)
    (cni / "10-pods.conflist").write_text(json.dumps(network.pod_network(node)))
    config = node.folder / "containerd.toml"
    config.write_text(_containerd_config(node, cni))
    name = f"containerd-{node.index}"
    if not processes.alive(name):
        node.containerd_socket.unlink(missing_ok=True)
    processes.start(name, ["containerd", "--config", config], enter=_enter(node, processes))
    processes.wait(name, "its socket", node.containerd_socket.exists, 30)


def _containerd_config(node: Node, cni: Path) -> str:
    # Without restrict_oom_score_adj, runc needs CAP_SYS_RESOURCE to start any pod.
    return f"""\
version = 2
root = "{node.folder}/containerd"
state = "/run/containerd/state"
disabled_plugins = ["io.containerd.internal.v1.opt", "io.containerd.snapshotter.v1.aufs",
  "io.containerd.snapshotter.v1.btrfs", "io.containerd.snapshotter.v1.devmapper",
  "io.containerd.snapshotter.v1.zfs"]
[grpc]
address = "{node.containerd_socket}"
[plugins."io.containerd.grpc.v1.cri"]
sandbox_image = "{PAUSE_IMAGE}"
restrict_oom_score_adj = true
netns_mounts_under_state_dir = true
stream_server_address = "127.0.0.1"
[plugins."io.containerd.grpc.v1.cri".cni]
bin_dir = "/usr/lib/cni"
conf_dir = "{cni}"
"""


def start_kubelet(node: Node, kube: Path, devices: Sequence[Gpus], processes: Processes) -> None:
    """Start kubelet, kube-proxy and the device plugin of a node."""
    cgroups.create(node.cgroup)
    resolver = node.folder / "resolv.conf"
    resolver.write_text("# pods use CoreDNS, which forwards no queries\n")
    config = node.folder / "kubelet.json"
    config.write_text(json.dumps(_kubelet_config(node, resolver)))
    pki, enter = node.cluster.pki, _enter(node, processes)
    labels = {key: value for device in devices for key, value in gpus.labels(device).items()}
    named = ",".join(f"{key}={value}" for key, value in sorted(labels.items()))
    started = processes.start(
        f"kubelet-{node.index}",
        [
            kube, "kubelet", "--config", config, "--kubeconfig", pki / f"{node.name}.kubeconfig",
            "--hostname-override", node.name, "--node-ip", node.address,
            "--cert-dir", node.folder / "kubelet-pki",
            *(["--node-labels", named] if named else []),
        ],
        enter=enter,
    )  # fmt: skip
    processes.start(
        f"kube-proxy-{node.index}",
        [
            kube, "kube-proxy", "--kubeconfig", pki / "proxy.kubeconfig",
            "--hostname-override", node.name, "--proxy-mode", "nftables", "--cluster-cidr", POD_RANGE,
            # Zero means unchanged: these sysctls are read-only without CAP_SYS_RESOURCE.
            "--conntrack-max-per-core", "0", "--conntrack-min", "0",
            "--conntrack-tcp-timeout-established", "0", "--conntrack-tcp-timeout-close-wait", "0",
        ],
        enter=enter,
    )  # fmt: skip
    if devices:
        offers = [f"{gpus.resource(device)}={device.count}" for device in devices]
        processes.start(
            f"device-plugin-{node.index}",
            [kube, "device-plugin", "/var/lib/kubelet/device-plugins", *offers],
            enter=enter,
        )
    if started:
        processes.check(f"kubelet-{node.index}")


def _kubelet_config(node: Node, resolver: Path) -> dict[str, object]:
    return {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "authentication": {
            "anonymous": {"enabled": False},
            "webhook": {"enabled": True},
            "x509": {"clientCAFile": str(node.cluster.pki / "ca.crt")},
        },
        "authorization": {"mode": "Webhook"},
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": f"/{node.cgroup}",
        "failCgroupV1": False,
        "enforceNodeAllocatable": [],
        "clusterDNS": [DNS_ADDRESS],
        "clusterDomain": "cluster.local",
        "containerRuntimeEndpoint": f"unix://{node.containerd_socket}",
        "resolvConf": str(resolver),
        "podLogsDir": str(node.folder / "pod-logs"),
        "failSwapOn": False,
        # Renewed every 4 s: after 20 s without, the controller manager marks the node NotReady.
        "nodeLeaseDurationSeconds": 16,
        # how often Secrets and annotations reach the volumes of running pods; a minute by default
        "syncFrequency": "10s",
        "oomScoreAdj": 0,
        "imageGCHighThresholdPercent": 100,  # images cannot be pulled again
        "evictionHard": {"memory.available": "100Mi", "nodefs.available": "1%"},
        "shutdownGracePeriod": "0s",
    }
