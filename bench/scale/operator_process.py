"""The operator as a process with the rights and limits that the chart gives it, in the cluster's network."""

import json
import os
import subprocess
import sys
import time
from collections import Counter, defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from prometheus_client.parser import text_string_to_metric_families

from bench.scale.control_plane import NAME, SYSTEM, ControlPlane

_PORT: Final = 18080
_ACCOUNT: Final = "/var/run/secrets/kubernetes.io/serviceaccount"
_WRITES: Final = frozenset({"POST", "PUT", "PATCH", "DELETE"})
_TICKS: Final = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Usage:
    """What the process has used since its start."""

    cpu_seconds: float
    rss_mib: float
    peak_mib: float
    requests: Counter[str]  # by verb
    passes: int  # over models

    @property
    def writes(self) -> int:
        """Return how many requests changed something."""
        return sum(count for verb, count in self.requests.items() if verb in _WRITES)

    def since(self, earlier: "Usage") -> "Usage":
        """Return what was used since an earlier time."""
        return Usage(
            self.cpu_seconds - earlier.cpu_seconds,
            self.rss_mib,
            self.peak_mib,
            self.requests - earlier.requests,
            self.passes - earlier.passes,
        )


class Operator:
    """One process at a time, started again by `restart`."""

    _process: subprocess.Popen[bytes]

    def __init__(self, plane: ControlPlane, image: str) -> None:
        self._plane = plane
        self._image = image

    def start(self) -> None:
        """Start it with its account's token, as a pod would have it."""
        folder = self._plane.folder / "account"
        folder.mkdir(exist_ok=True)
        token = self._plane.kubectl(
            "create", "token", "enginewright", "--namespace", SYSTEM, "--duration", "24h"
        )
        (folder / "token").write_text(token.strip())
        (folder / "namespace").write_text(SYSTEM)
        document = json.loads(self._plane.kubeconfig.read_text())
        authority = Path(document["clusters"][0]["cluster"]["certificate-authority"])
        (folder / "ca.crt").write_bytes(authority.read_bytes())
        config = {
            "images": {"rtx": self._image},
            "store": {"claim": "enginewright-store", "size": "1Gi", "accessMode": "ReadWriteMany"},
            "httpPort": _PORT,
        }
        environment = {
            **{key: value for key, value in os.environ.items() if key != "KUBECONFIG"},
            "KUBERNETES_SERVICE_HOST": "192.0.2.1",
            "KUBERNETES_SERVICE_PORT": "6443",
            "POD_NAMESPACE": SYSTEM,
            "ENGINEWRIGHT_CONFIG": json.dumps(config),
        }
        # a mount namespace of its own, so that the account's files are where a pod has them
        script = (
            f"mount -t tmpfs none /run && mkdir -p {_ACCOUNT} && mount --bind {folder} {_ACCOUNT}"
            f" && exec {sys.executable} -m enginewright.main"
        )
        self._process = self._plane.start(
            ["unshare", "--mount", "sh", "-c", script], "operator.log", environment
        )

    def stop(self) -> None:
        """End it as the kubelet does."""
        self._plane.end(self._process)

    def usage(self) -> Usage:
        """Return what it has used. Raises OSError while it does not listen."""
        proc = Path(f"/proc/{self._process.pid}")
        fields = (proc / "stat").read_text().rpartition(")")[2].split()
        status = dict(
            line.split(":", 1) for line in (proc / "status").read_text().splitlines() if ":" in line
        )
        requests: Counter[str] = Counter()
        passes = 0
        for family in text_string_to_metric_families(self._metrics()):
            for sample in family.samples:
                if sample.name == "rest_client_requests_total":
                    requests[sample.labels["method"]] += int(sample.value)
                elif sample.name == "controller_runtime_reconcile_total":
                    passes += int(sample.value)
        return Usage(
            (int(fields[11]) + int(fields[12])) / _TICKS,
            int(status["VmRSS"].split()[0]) / 1024,
            int(status["VmHWM"].split()[0]) / 1024,
            requests,
            passes,
        )

    def wait_settled(self, seconds: float, window: float = 6.0) -> float:
        """Wait until nothing is queued and no pass ends; return when that began, by the monotonic clock."""
        deadline = time.monotonic() + seconds
        passes, since = -1.0, time.monotonic()
        while time.monotonic() < deadline:
            queued, ended = self._read_queues()
            if queued or ended != passes:
                passes, since = ended, time.monotonic()
            if passes > 0 and time.monotonic() - since > window:
                return since
            time.sleep(0.5)
        raise TimeoutError(f"the operator is busy after {seconds:.0f} s")

    def _read_queues(self) -> tuple[float, float]:
        """Return what is queued or under way, and how many passes have ended; (1, 0) while it does not listen."""
        try:
            text = self._metrics()
        except OSError:
            return 1.0, 0.0
        totals: defaultdict[str, float] = defaultdict(float)
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                totals[sample.name] += sample.value
        queued = totals["workqueue_depth"] + totals["workqueue_unfinished_work_seconds"]
        return queued, totals["controller_runtime_reconcile_total"]

    def _metrics(self) -> str:
        # its network is another one, so the request is sent by a process there
        code = f"import urllib.request as u;print(u.urlopen('http://127.0.0.1:{_PORT}/metrics',timeout=10).read().decode())"
        command = ["nsenter", f"--net=/run/netns/ew-{NAME}", "--", sys.executable, "-I", "-c", code]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise OSError(done.stderr[-200:])
        return done.stdout
