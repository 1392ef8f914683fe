"""The chart as Helm renders it: least rights, restricted pods, settings that the operator reads."""

import functools
import itertools
import json
import operator
import subprocess
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml
from driver import build
from enginewright.controller.settings import load_settings
from enginewright.manifests.artifact_images import ImageRepository
from enginewright.manifests.placement import WITHOUT_MESH
from enginewright.manifests.store_access import StoreBucket
from enginewright.plan.types import CollectionConfig, FleetConfig
from enginewright_contract import images as contract_images
from enginewright_contract.node_cache import CACHE_PORT

from tests.support.programs import run_program
from tests.support.yaml_text import load_documents

REPOSITORY = Path(__file__).resolve().parents[2]
CHART = REPOSITORY / "charts/enginewright"
IMAGES = {"images": {"operator": "operator:1", "runtime": {"cpu": "cpu:1", "openvino": "vino:1"}}}

pytestmark = pytest.mark.timeout(1500)  # helm is built when it is first used

Object = dict[str, Any]

FULL: Object = {
    **IMAGES,
    "imagePullPolicy": "Always",
    "imagePullSecrets": [{"name": "registry"}],
    "store": {
        "claim": "models",
        "size": "1Ti",
        "accessMode": "ReadWriteOnce",
        "storageClass": "fast",
    },
    "fleet": {"limit": 7, "maxFailures": 1, "paused": True},
    "sources": {"refusedNetworks": ["10.0.0.0/8"]},
    "logLevel": "debug",
    "resources": {"limits": {"memory": "1Gi"}},
    "podAnnotations": {"example.com/note": "yes"},
    "nodeSelector": {"disk": "ssd"},
    "tolerations": [{"operator": "Exists"}],
    "affinity": {"nodeAffinity": {}},
    "replicas": 3,
    "watchNamespaces": ["shop", "home"],
}
NON_ROOT: Object = {
    "runAsNonRoot": True,
    "runAsUser": 65532,
    "runAsGroup": 65532,
    "seccompProfile": {"type": "RuntimeDefault"},
}
RESTRICTED: Object = {
    "allowPrivilegeEscalation": False,
    "readOnlyRootFilesystem": True,
    "capabilities": {"drop": ["ALL"]},
}
VARIANTS = {
    "smallest": {"images": {"operator": "operator:1", "runtime": {"cpu": "cpu:1"}}},
    "full": FULL,
    "bare": {
        **IMAGES,
        "crds": {"install": False},
        "accelerators": {"cpu": {"create": False}, "propose": False},
        "rbac": {"aggregate": False},
        "jobsPriorityClass": {"create": False},
    },
}


def helm(
    values: Object, release: str = "enginewright", *, install: bool = False
) -> subprocess.CompletedProcess[str]:
    return _helm(json.dumps(values), release, install=install)


@functools.cache  # many tests render the same values
def _helm(
    values: str, release: str, *, install: bool, test: bool = False
) -> subprocess.CompletedProcess[str]:
    action = ["install", "--dry-run=client"] if install else ["template"]
    if not install and not test:
        action.append("--skip-tests")
    command: list[str | Path] = [build.binaries() / "kube", "helm", *action, release, CHART]
    return run_program([*command, "--namespace", "home", "--values", "-"], input=values, code=None)


def render(values: Object, release: str = "enginewright") -> list[Object]:
    done = helm(values, release)
    assert done.returncode == 0, done.stderr
    return load_documents(done.stdout)


def notes(values: Object) -> str:
    """Return what helm prints after an installation, without the name and time of the release."""
    done = helm(values, install=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.partition("\nNOTES:\n")[2]


def refusal(values: Object) -> str:
    done = helm(values)
    assert done.returncode != 0
    return done.stderr


def of_kind(objects: list[Object], kind: str) -> list[Object]:
    return [object_ for object_ in objects if object_["kind"] == kind]


def one(objects: list[Object], kind: str) -> Object:
    """The only object of a kind, or the only one that is named as the release is."""
    candidates = of_kind(objects, kind)
    if len(candidates) > 1:
        (deployment,) = of_kind(objects, "Deployment")
        name = deployment["metadata"]["name"]
        candidates = [
            candidate for candidate in candidates if candidate["metadata"]["name"] == name
        ]
    (only,) = candidates
    return only


@pytest.fixture(scope="module", params=sorted(VARIANTS))
def variant(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def objects(variant: str) -> list[Object]:
    return render(VARIANTS[variant])


def pod(objects: list[Object]) -> Object:
    return dict(one(objects, "Deployment")["spec"]["template"]["spec"])


def test_pods_are_restricted(objects: list[Object]) -> None:
    spec = pod(objects)
    assert spec["securityContext"] == NON_ROOT
    (container,) = spec["containers"]
    assert container["securityContext"] == RESTRICTED
    assert not {"hostNetwork", "hostPID", "hostIPC", "volumes", "initContainers"} & spec.keys()


def rules(objects: list[Object]) -> list[Object]:
    """What the operator may do."""
    roles = [entry for kind in ("ClusterRole", "Role") for entry in of_kind(objects, kind)]
    roles = [entry for entry in roles if "aggregate" not in str(entry["metadata"]["labels"])]
    return list(itertools.chain.from_iterable(role["rules"] for role in roles))


def test_rights_have_no_wildcard_and_no_secrets(objects: list[Object]) -> None:
    for rule in rules(objects):
        for values in rule.values():
            assert "*" not in values
        assert "secrets" not in rule["resources"]
        assert not {"escalate", "bind", "impersonate", "deletecollection"} & set(rule["verbs"])


def test_classes_are_made_only_where_they_are_proposed(objects: list[Object], variant: str) -> None:
    (rule,) = [rule for rule in rules(objects) if rule["resources"] == ["acceleratorclasses"]]
    making = set() if variant == "bare" else {"create", "patch"}
    assert set(rule["verbs"]) == {"get", "list", "watch"} | making


def test_engines_are_made_and_models_are_not(objects: list[Object]) -> None:
    verbs = {
        resource: set(rule["verbs"]) for rule in rules(objects) for resource in rule["resources"]
    }
    assert verbs["inferencemodels"] == {"get", "list", "watch"}
    assert verbs["inferenceengines"] == {"get", "list", "watch", "create", "patch", "delete"}
    assert verbs["inferenceengines/status"] == {"patch"}


def test_config_maps_only_by_name_and_at_home(objects: list[Object]) -> None:
    (rule,) = [rule for rule in rules(objects) if "configmaps" in rule["resources"]]
    assert rule in one(objects, "Role")["rules"]
    assert rule["resourceNames"] == ["enginewright-images", "enginewright-proposals"]
    assert one(objects, "Role")["metadata"]["namespace"] == "home"


def test_the_store_is_the_only_claim_and_is_never_deleted(
    objects: list[Object], variant: str
) -> None:
    claim_rules = [rule for rule in rules(objects) if "persistentvolumeclaims" in rule["resources"]]
    claim = VARIANTS[variant].get("store", {}).get("claim", "enginewright-store")
    for rule in claim_rules:
        assert rule["resourceNames"] == [claim]
        assert "delete" not in rule["verbs"]
    assert len(claim_rules) == (2 if variant == "full" else 1)  # one for each watched namespace


def test_cluster_wide_rights_are_for_cluster_scoped_objects(
    objects: list[Object], variant: str
) -> None:
    everywhere = one(objects, "ClusterRole")["rules"]
    written = {
        resource
        for rule in everywhere
        for resource in rule["resources"]
        if set(rule["verbs"]) - {"get", "list", "watch"}
    }
    if variant == "full":
        assert written == {"acceleratorclasses", "acceleratorclasses/status"}
        bound = {
            (entry["metadata"]["namespace"], entry["roleRef"]["name"])
            for entry in of_kind(objects, "RoleBinding")
        }
        assert bound == {
            ("home", "enginewright"),
            ("home", "enginewright-home"),
            ("shop", "enginewright-home"),
        }
    else:
        assert {"jobs", "deployments"} <= written
        assert len(of_kind(objects, "Role")) == 1


def test_the_lease_is_written_at_home_and_read_everywhere(objects: list[Object]) -> None:
    (listing,) = [r for r in one(objects, "ClusterRole")["rules"] if "leases" in r["resources"]]
    assert listing["verbs"] == ["list"]
    writing = [r for r in one(objects, "Role")["rules"] if "leases" in r["resources"]]
    names = ["enginewright", "enginewright-classes"]
    assert [(item["verbs"], item.get("resourceNames")) for item in writing] == [
        (["update"], names),
        (["create"], None),
    ]


def test_users_get_rights_on_models_and_read_classes() -> None:
    rendered = render(IMAGES)
    rights: dict[str, dict[str, set[str]]] = {"view": {}, "edit": {}, "admin": {}}
    for entry in of_kind(rendered, "ClusterRole"):
        for role, resources in rights.items():
            label = f"rbac.authorization.k8s.io/aggregate-to-{role}"
            if entry["metadata"]["labels"].get(label) != "true":
                continue
            for rule in entry["rules"]:
                for resource in rule["resources"]:
                    resources.setdefault(resource, set()).update(rule["verbs"])
    reading = {"get", "list", "watch"}
    writing = reading | {"create", "update", "patch", "delete", "deletecollection"}
    for kind in ("inferencemodels", "inferenceengines"):
        assert rights["view"][kind] == reading
        assert rights["edit"][kind] == rights["admin"][kind] == writing
    for resources in rights.values():
        assert resources["acceleratorclasses"] == reading
        assert resources["inferencemodels/status"] == reading  # the operator's to write
    assert rights["edit"]["inferencemodels/scale"] == {"get", "update", "patch"}
    assert rights["view"]["inferencemodels/scale"] == {"get"}
    off = render({**IMAGES, "rbac": {"aggregate": False}})
    assert len(of_kind(off, "ClusterRole")) == 1


def test_bindings_bind_the_pods_account(objects: list[Object]) -> None:
    account = one(objects, "ServiceAccount")["metadata"]
    assert pod(objects)["serviceAccountName"] == account["name"]
    for binding, role in (("ClusterRoleBinding", "ClusterRole"), ("RoleBinding", "Role")):
        bound = one(objects, binding)
        assert bound["roleRef"]["name"] == one(objects, role)["metadata"]["name"]
        assert bound["subjects"] == [
            {"kind": "ServiceAccount", "name": account["name"], "namespace": "home"}
        ]


def test_one_replica_by_default_and_the_next_is_ready_before_it_ends(
    objects: list[Object], variant: str
) -> None:
    spec = one(objects, "Deployment")["spec"]
    assert spec["replicas"] == (3 if variant == "full" else 1)
    assert spec["strategy"] == {"rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}}


def test_several_replicas_are_spread_and_evicted_one_by_one(
    objects: list[Object], variant: str
) -> None:
    spread = pod(objects).get("topologySpreadConstraints", [])
    if variant != "full":
        assert not spread
        assert not of_kind(objects, "PodDisruptionBudget")
        return
    labels = one(objects, "Deployment")["spec"]["template"]["metadata"]["labels"]
    for item in spread:
        assert item["labelSelector"]["matchLabels"].items() <= labels.items()
    assert {item["topologyKey"]: item["whenUnsatisfiable"] for item in spread} == {
        "kubernetes.io/hostname": "DoNotSchedule",
        "topology.kubernetes.io/zone": "ScheduleAnyway",
    }
    budget = one(objects, "PodDisruptionBudget")["spec"]
    assert budget["maxUnavailable"] == 1
    assert budget["selector"]["matchLabels"].items() <= labels.items()
    mine = [{"topologyKey": "rack", "maxSkew": 1, "whenUnsatisfiable": "DoNotSchedule"}]
    values = {**IMAGES, "topologySpreadConstraints": mine}
    assert pod(render(values))["topologySpreadConstraints"] == mine


def test_service_and_probes_reach_the_port(objects: list[Object]) -> None:
    (container,) = pod(objects)["containers"]
    assert container["ports"] == [{"name": "http", "containerPort": 8080}]
    assert container["livenessProbe"]["httpGet"] == {"path": "/healthz", "port": "http"}
    assert container["readinessProbe"]["httpGet"] == {"path": "/readyz", "port": "http"}
    service = one(objects, "Service")["spec"]
    assert service["ports"] == [{"name": "http", "port": 8080, "targetPort": "http"}]
    labels = one(objects, "Deployment")["spec"]["template"]["metadata"]["labels"]
    assert service["selector"].items() <= labels.items()


def test_policies_admit_operator_clients_and_what_jobs_fetch() -> None:
    clients = [{"podSelector": {"matchLabels": {"app": "shop"}}}]
    values = {"networkPolicies": {"enabled": True, "namespaces": ["shop"], "clients": clients}}
    assert of_kind(render(IMAGES), "NetworkPolicy") == []
    objects = render({**IMAGES, **values})
    policies = {
        (
            item["metadata"]["namespace"],
            item["metadata"]["name"].removeprefix("enginewright-"),
        ): item["spec"]
        for item in of_kind(objects, "NetworkPolicy")
    }
    pairs = {(place, name) for place in ("shop", "home") for name in ("jobs", "pods")}
    assert policies.keys() == {*pairs, ("home", "operator")}
    operator = policies["home", "operator"]["podSelector"]["matchLabels"]
    assert (
        operator.items()
        <= one(objects, "Deployment")["spec"]["template"]["metadata"]["labels"].items()
    )
    home = {"matchLabels": {"kubernetes.io/metadata.name": "home"}}
    ours = {"namespaceSelector": home, "podSelector": {"matchLabels": operator}}
    (progress,) = policies["shop", "jobs"]["ingress"]
    requests, metrics = policies["shop", "pods"]["ingress"]
    assert progress == {"ports": [{"protocol": "TCP", "port": 8081}], "from": [ours]}
    assert [item["port"] for item in requests["ports"]] == [8080, 8001]
    siblings = {"podSelector": {"matchLabels": {"app.kubernetes.io/managed-by": "enginewright"}}}
    assert requests["from"] == [*clients, siblings], "pods of other namespaces may copy labels"
    assert ours in metrics["from"]
    for spec in policies.values():
        assert spec["policyTypes"] == ["Ingress", "Egress"]
        blocks = [
            peer["ipBlock"]
            for rule in spec["egress"]
            for peer in rule.get("to", ())
            if "ipBlock" in peer
        ]
        assert blocks
        assert all(block["except"] for block in blocks)
    with_identity = render({**IMAGES, "networkPolicies": {"enabled": True, "metadata": True}})
    assert "'cidr': '169.254.0.0/16'" in str(of_kind(with_identity, "NetworkPolicy"))


def environment(objects: list[Object]) -> dict[str, str]:
    (container,) = pod(objects)["containers"]
    return {item["name"]: item.get("value", "home") for item in container["env"]}


def test_the_operator_reads_the_settings_of_the_chart() -> None:
    settings = load_settings(environment(render(FULL)))
    assert settings.log_level == "debug"
    assert settings.http_port == 8080
    assert settings.config.namespace == "home"
    assert settings.config.images == {"cpu": "cpu:1", "openvino": "vino:1"}
    assert settings.config.image_pull_policy == "Always"
    assert settings.config.image_pull_secrets == ("registry",)
    store = settings.config.store
    assert (store.claim, store.size) == ("models", "1Ti")
    assert (store.access_mode, store.storage_class) == ("ReadWriteOnce", "fast")
    assert settings.config.fleet == FleetConfig(7, 1, paused=True)
    assert settings.config.refused_networks == ("10.0.0.0/8",)
    assert settings.deployment == "enginewright"
    assert settings.namespaces == frozenset({"shop", "home"})


BUCKET: Object = {"uri": "s3://models/team", "secretRef": "keys", "serviceAccountName": ""}
REPOSITORY_OF_IMAGES: Object = {"repository": "registry.example.com/team/images", "secretRef": "p"}
JOBS: Object = {"nodeSelector": {"pool": "b"}, "labels": {"kueue.x-k8s.io/queue-name": "b"}}
EVERY_VARIANT = {variant: f"{variant}:1" for variant in set(contract_images.VARIANTS.values())}


@pytest.mark.parametrize(
    ("values", "name", "read"),
    [
        ({}, "namespaces", None),
        ({}, "config.images", {"cpu": "cpu:1", "openvino": "vino:1"}),
        ({"images": {"operator": "o:1", "runtime": EVERY_VARIANT}}, "config.images", EVERY_VARIANT),
        ({}, "config.image_pull_secrets", ()),
        ({}, "config.store.storage_class", None),
        ({}, "config.fleet", FleetConfig()),
        ({}, "config.store.bucket", None),
        (
            {"store": {"bucket": BUCKET}},
            "config.store.bucket",
            StoreBucket(uri="s3://models/team", secret="keys"),
        ),
        ({}, "config.store.node_cache", None),
        (
            {"store": {"bucket": BUCKET, "cache": {"enabled": False}}},
            "config.store.node_cache",
            None,
        ),
        (
            {"store": {"bucket": BUCKET}},
            "config.store.node_cache",
            "enginewright-cache.home.svc:8080",
        ),
        ({}, "config.store.images", None),
        (
            {"store": {"images": REPOSITORY_OF_IMAGES}},
            "config.store.images",
            ImageRepository("registry.example.com/team/images", "p"),
        ),
        ({"jobs": JOBS}, "config.jobs.node_selector", JOBS["nodeSelector"]),
        ({"jobs": JOBS}, "config.jobs.labels", {**WITHOUT_MESH.labels, **JOBS["labels"]}),
        ({"jobs": {**JOBS, "meshInjection": True}}, "config.jobs.labels", JOBS["labels"]),
        ({"jobs": JOBS}, "config.jobs.priority_class_name", "enginewright-jobs"),
    ],
)
def test_the_operator_reads(values: Object, name: str, read: object) -> None:
    settings = load_settings(environment(render({**IMAGES, **values})))
    assert operator.attrgetter(name)(settings) == read


def share_bucket(*groups: Object, **bucket: str) -> Object:
    return {**IMAGES, "store": {"bucket": {"uri": "s3://models", "shared": [*groups], **bucket}}}


def test_shared_groups_of_earlier_releases_are_refused_with_a_remedy() -> None:
    refused = refusal(share_bucket({"name": "research", "namespaces": ["team-a", "team-b"]}))
    assert "store.bucket.shared is not supported any more" in refused
    assert "from s3://models/_GROUP to s3://models/NAMESPACE" in refused
    assert "`enginewright store export` and `enginewright store import`" in refused
    none = environment(
        render(share_bucket())
    )  # as `helm upgrade --reuse-values` leaves the default
    assert none == environment(render({**IMAGES, "store": {"bucket": {"uri": "s3://models"}}}))
    assert "shared" not in none["ENGINEWRIGHT_CONFIG"]


def test_values_of_an_earlier_chart_are_enough() -> None:
    """As `helm upgrade --reuse-values` leaves them."""
    values = {
        **IMAGES,
        "accelerators": {"productLabels": None},
        "store": {"bucket": {"uri": "s3://models/team"}, "cache": {"keepFree": None}},
    }
    objects = render(values)
    assert load_settings(environment(objects)).config.product_labels == ()
    (cache,) = of_kind(objects, "DaemonSet")
    (container,) = cache["spec"]["template"]["spec"]["containers"]
    assert "--keep-free=25%" in container["command"]


CACHED: Object = {**IMAGES, "store": {"bucket": {"uri": "s3://models/team"}}}


def test_the_cache_of_a_node_exists_only_with_a_bucket() -> None:
    assert of_kind(render(IMAGES), "DaemonSet") == []
    off = {**IMAGES, "store": {**CACHED["store"], "cache": {"enabled": False}}}
    assert of_kind(render(off), "DaemonSet") == []


def test_the_cache_of_a_node_is_restricted_and_has_no_rights() -> None:
    (daemon_set,) = of_kind(render(CACHED), "DaemonSet")
    spec = daemon_set["spec"]["template"]["spec"]
    assert spec["securityContext"] == NON_ROOT | {"fsGroup": 65532}
    assert spec["automountServiceAccountToken"] is False
    assert "serviceAccountName" not in spec
    assert spec["tolerations"] == [{"operator": "Exists"}]
    (container,) = spec["containers"]
    assert container["securityContext"] == RESTRICTED
    assert container["image"] == "operator:1"
    assert {"env", "envFrom"} & container.keys() == set()
    assert spec["volumes"] == [{"name": "cache", "emptyDir": {"sizeLimit": "20Gi"}}]
    assert container["command"] == [
        "enginewright-cache",
        "--folder=/cache",
        "--size=20Gi",
        "--keep-free=25%",
    ]
    (assigned,) = of_kind(render({**CACHED, "openshift": True}), "DaemonSet")
    context = assigned["spec"]["template"]["spec"]["securityContext"]
    assert {"runAsUser", "runAsGroup", "fsGroup"} & context.keys() == set()


def test_a_pod_reaches_the_cache_of_its_own_node_only() -> None:
    rendered = render({**CACHED, "monitoring": {"podMonitor": {"enabled": True}}})
    name = "enginewright-cache"
    (service,) = (
        entry for entry in of_kind(rendered, "Service") if entry["metadata"]["name"] == name
    )
    assert service["spec"]["internalTrafficPolicy"] == "Local"
    assert service["spec"]["ports"] == [{"name": "http", "port": CACHE_PORT, "targetPort": "http"}]
    template = one(rendered, "DaemonSet")["spec"]["template"]
    labels = template["metadata"]["labels"]
    assert service["spec"]["selector"].items() <= labels.items()
    (container,) = template["spec"]["containers"]
    assert container["ports"] == [{"name": "http", "containerPort": CACHE_PORT}]
    others = [entry for entry in of_kind(rendered, "Service") if entry is not service]
    operators = of_kind(rendered, "Deployment")[0]["spec"]["selector"]["matchLabels"]
    for selector in (operators, *(entry["spec"]["selector"] for entry in others)):
        assert not selector.items() <= labels.items()
    (monitor,) = (
        entry for entry in of_kind(rendered, "PodMonitor") if entry["metadata"]["name"] == name
    )
    assert monitor["spec"]["selector"]["matchLabels"].items() <= labels.items()


def test_settings_of_the_collection_arrive() -> None:
    def read(values: Object) -> CollectionConfig:
        return load_settings(environment(render({**IMAGES, **values}))).config.store.gc

    assert read({}) == CollectionConfig()
    bucket = {"uri": "s3://models/team"}
    assert read({"store": {"bucket": bucket}}).dry_run
    assert not read({"store": {"bucket": bucket, "gc": {"dryRun": False}}}).dry_run
    gc = {"enabled": False, "interval": "1h", "unusedFor": "0", "maxSize": "50Gi", "dryRun": True}
    assert read({"store": {"gc": gc}}) == CollectionConfig(
        enabled=False,
        interval=timedelta(hours=1),
        unused_for=None,
        max_size=50 * 1024**3,
        dry_run=True,
    )
    assert read({"store": {"gc": {"unusedFor": 0, "maxSize": 10**11}}}) == CollectionConfig(
        unused_for=None, max_size=10**11
    )


def test_of_a_namespace_only_its_annotations_are_read(objects: list[Object]) -> None:
    namespace_rules = [rule for rule in rules(objects) if "namespaces" in rule["resources"]]
    assert namespace_rules
    assert all(rule["verbs"] == ["get"] for rule in namespace_rules)


def test_the_cluster_has_an_identity_even_if_few_namespaces_are_watched() -> None:
    watched = render({**IMAGES, "watchNamespaces": ["team"]})
    (role,) = (
        entry
        for entry in watched
        if entry["kind"] == "ClusterRole" and "aggregat" not in str(entry["metadata"])
    )
    (namespace_rule,) = (rule for rule in role["rules"] if "namespaces" in rule["resources"])
    assert (namespace_rule["resourceNames"], namespace_rule["verbs"]) == (["kube-system"], ["get"])


def test_the_notes_are_about_the_store_that_is_configured() -> None:
    claims = {"accessMode": "ReadWriteOnce", "claim": "artefacts"}
    about_claims = notes({**IMAGES, "store": claims})
    assert "rejected with reason StoreNotShared" in about_claims
    assert "AcceleratorClasses, and the claims artefacts with their artefacts." in about_claims
    bucket = {"bucket": {"uri": "s3://models/team"}}
    about_bucket = notes({**IMAGES, "store": claims | bucket})
    assert "StoreNotShared" not in about_bucket
    assert "AcceleratorClasses, and the artefacts in s3://models/team." in about_bucket


def test_the_notes_say_which_connections_the_network_policies_allow() -> None:
    assert "No NetworkPolicies are created: networkPolicies.enabled=true limits" in notes(IMAGES)
    admitted = {"clients": [{"podSelector": {}}], "metadata": True, "namespaces": ["team"]}
    limited = notes({**IMAGES, "networkPolicies": {"enabled": True, **admitted}})
    assert "and in no other namespace: networkPolicies.clients send requests" in limited
    assert "everybody reads metrics" in limited
    assert "every address that is not link-local, the clouds' metadata services too;" in limited


def priority_of_jobs(objects: list[Object]) -> str | None:
    return load_settings(environment(objects)).config.jobs.priority_class_name


def test_jobs_give_way_to_pods_that_serve_and_preempt_none(
    objects: list[Object], variant: str
) -> None:
    classes = of_kind(objects, "PriorityClass")
    if variant == "bare":
        assert not classes
        assert priority_of_jobs(objects) is None
        return
    (made,) = classes
    assert priority_of_jobs(objects) == made["metadata"]["name"] == "enginewright-jobs"
    assert -10 <= made["value"] < 0, "lower ones get no new nodes from the cluster autoscaler"
    assert made["preemptionPolicy"] == "Never"
    assert "globalDefault" not in made


def test_each_release_has_its_own_priority_class() -> None:
    objects = render(IMAGES, "staging")
    assert priority_of_jobs(objects) == "staging-enginewright-jobs"
    assert one(objects, "PriorityClass")["metadata"]["name"] == "staging-enginewright-jobs"


@pytest.mark.parametrize("create", [True, False])
def test_an_administrators_priority_class_takes_precedence(create: bool) -> None:
    jobs = {"priorityClassName": "batch", "nodeSelector": {"pool": "builds"}}
    objects = render({**IMAGES, "jobs": jobs, "jobsPriorityClass": {"create": create}})
    assert priority_of_jobs(objects) == "batch"
    # Jobs from before may still name it
    assert len(of_kind(objects, "PriorityClass")) == create


def test_the_operators_requests_have_a_level_of_their_own_where_that_is_wanted() -> None:
    assert not of_kind(render(IMAGES), "FlowSchema")
    objects = render({**IMAGES, "apiPriority": {"create": True}}, "staging")
    (level,) = of_kind(objects, "PriorityLevelConfiguration")
    flows = sorted(
        of_kind(objects, "FlowSchema"), key=lambda flow: flow["spec"]["matchingPrecedence"]
    )
    account = one(objects, "ServiceAccount")["metadata"]["name"]
    levels = [flow["spec"]["priorityLevelConfiguration"]["name"] for flow in flows]
    assert levels == ["leader-election", level["metadata"]["name"]]
    assert level["spec"]["limited"]["nominalConcurrencyShares"] == 20
    for flow in flows:
        (rule,) = flow["spec"]["rules"]
        (subject,) = rule["subjects"]
        assert subject["serviceAccount"] == {"name": account, "namespace": "home"}


def test_pod_values_arrive() -> None:
    objects = render(FULL)
    spec = pod(objects)
    assert spec["nodeSelector"] == {"kubernetes.io/os": "linux", "disk": "ssd"}
    for field in ("tolerations", "affinity", "imagePullSecrets"):
        assert spec[field] == FULL[field]
    (container,) = spec["containers"]
    assert container["imagePullPolicy"] == "Always"
    assert container["resources"]["limits"] == {"memory": "1Gi"}
    metadata = one(objects, "Deployment")["spec"]["template"]["metadata"]
    assert metadata["annotations"] == FULL["podAnnotations"]


def test_definitions_and_class_have_a_switch(objects: list[Object], variant: str) -> None:
    bare = variant == "bare"
    assert len(of_kind(objects, "CustomResourceDefinition")) == (0 if bare else 3)
    assert len(of_kind(objects, "AcceleratorClass")) == (0 if bare else 1)


def test_the_class_is_a_hook_and_the_definitions_are_kept() -> None:
    objects = render(IMAGES)
    annotations = one(objects, "AcceleratorClass")["metadata"]["annotations"]
    assert annotations == {"helm.sh/hook": "post-install,post-upgrade"}
    for entry in of_kind(objects, "CustomResourceDefinition"):
        assert entry["metadata"]["annotations"] == {"helm.sh/resource-policy": "keep"}


def test_the_class_allows_the_backends_that_have_an_image() -> None:
    only_cpu = {"images": {"operator": "operator:1", "runtime": {"cpu": "cpu:1"}}}
    for values, backends in ((IMAGES, ["openvino", "cpu"]), (only_cpu, ["cpu"])):
        assert one(render(values), "AcceleratorClass")["spec"]["backends"] == backends


def test_releases_do_not_share_names() -> None:
    first, second = (
        {(entry["kind"], entry["metadata"]["name"]) for entry in render({**IMAGES, **off}, release)}
        for off in (VARIANTS["bare"],)
        for release in ("enginewright", "staging")
    )
    assert not first & second


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({}, "set images.operator to the operator's image: build it from operator/Containerfile"),
        (
            {"images": {"operator": "operator:1"}},
            "set images.runtime.cpu to the runtime image's variant `cpu`",
        ),
        ({**IMAGES, "image": {}}, "additional properties 'image' not allowed"),
        ({**IMAGES, "store": {"sizes": "1Gi"}}, "additional properties 'sizes' not allowed"),
        ({**IMAGES, "store": {"accessMode": "ReadWriteAll"}}, "'ReadWriteMany', 'ReadWriteOnce'"),
        ({**IMAGES, "store": {"size": "much"}}, "/store/size"),
        ({**IMAGES, "store": {"claim": "My Claim"}}, "/store/claim"),
        ({**IMAGES, "store": {"bucket": {"uri": "https://models"}}}, "/store/bucket/uri"),
        ({**IMAGES, "store": {"bucket": {"uri": "az://models/a?sig=k"}}}, "/store/bucket/uri"),
        ({**IMAGES, "store": {"bucket": {"secretRef": "keys"}}}, "set store.bucket.uri"),
        (share_bucket({"name": "r"}, uri=""), "from PATH/_GROUP to PATH/NAMESPACE"),
        ({**IMAGES, "store": {"gc": {"interval": "daily"}}}, "/store/gc/interval"),
        ({**IMAGES, "store": {"gc": {"unusedFor": "never"}}}, "/store/gc/unusedFor"),
        ({**IMAGES, "store": {"gc": {"unusedFor": 30}}}, "/store/gc/unusedFor"),
        ({**IMAGES, "store": {"gc": {"maxSize": "50 GB"}}}, "/store/gc/maxSize"),
        ({**IMAGES, "store": {"gc": {"keep": 1}}}, "'keep' not allowed"),
        ({**IMAGES, "store": {"cache": {"size": "much"}}}, "/store/cache/size"),
        ({**IMAGES, "store": {"cache": {"keepFree": "much"}}}, "/store/cache/keepFree"),
        ({**IMAGES, "store": {"cache": {"sizes": 1}}}, "'sizes' not allowed"),
        ({**IMAGES, "store": {"images": {"secretRef": "p"}}}, "set store.images.repository"),
        *(
            (
                {**IMAGES, "store": {"images": {"repository": wrong}}},
                f"store.images.repository is {wrong}: write HOST/PATH",
            )
            for wrong in ("https://registry.example.com/team", "example.com/team:v1", "team/images")
        ),
        ({**IMAGES, "replicas": -1}, "/replicas"),
        ({**IMAGES, "watchNamespaces": ["My RunSettings"]}, "/watchNamespaces/0"),
        ({**IMAGES, "watchNamespaces": "shop"}, "/watchNamespaces"),
        ({**IMAGES, "logLevel": "loud"}, "'debug', 'info', 'warning', 'error'"),
        ({**IMAGES, "crds": {"install": "no"}}, "/crds/install"),
        ({**IMAGES, "imagePullSecrets": ["registry"]}, "/imagePullSecrets/0"),
        ({**IMAGES, "jobsPriorityClass": {"create": "no"}}, "/jobsPriorityClass/create"),
        ({**IMAGES, "jobsPriorityClass": {"value": -1}}, "'value' not allowed"),
        ({**IMAGES, "apiPriority": {"shares": 0}}, "/apiPriority/shares"),
    ],
)
def test_bad_values_are_refused(values: Object, sentence: str) -> None:
    assert sentence in refusal(values)


@pytest.mark.parametrize("policies", [False, True])
def test_the_test_is_all_hooks_restricted_and_reaches_one_model(policies: bool) -> None:
    values = {**FULL, "networkPolicies": {"enabled": policies}}
    texts = [_helm(json.dumps(values), "shop", install=False, test=test) for test in (True, False)]
    with_test, without = (load_documents(text.stdout) for text in texts)
    hooks = [object_ for object_ in with_test if object_ not in without]
    kinds = {"ServiceAccount", "Role", "RoleBinding", "Pod", *(["NetworkPolicy"] * policies)}
    assert {hook["kind"] for hook in hooks} == kinds
    for hook in hooks:
        annotations = hook["metadata"]["annotations"]
        assert annotations["helm.sh/hook"] == "test"
        assert "hook-succeeded" in annotations["helm.sh/hook-delete-policy"]
    (role,), (test,) = of_kind(hooks, "Role"), of_kind(hooks, "Pod")
    named = {name for rule in role["rules"] for name in rule.get("resourceNames", ())}
    assert {verb for rule in role["rules"] for verb in rule["verbs"]} == {"get", "create", "delete"}
    (container,) = test["spec"]["containers"]
    assert test["spec"]["securityContext"] == NON_ROOT
    assert container["securityContext"] == RESTRICTED
    variables = {one["name"]: one.get("value") for one in container["env"]}
    assert named == {variables["NAME"]} == {"test-shop-enginewright"}
    assert (
        container["command"][2].rstrip()
        == (CHART / "files/test/serve_a_model.py").read_text().rstrip()
    )
    if policies:
        (policy,) = of_kind(hooks, "NetworkPolicy")
        (peer,) = policy["spec"]["egress"][0]["to"]
        assert peer["podSelector"]["matchLabels"].items() <= test["metadata"]["labels"].items()


def find_undescribed(schema: Object, path: str = "") -> list[str]:
    """Return the paths of the schema's values that lack a description."""
    missing = []
    for name, entry in schema.get("properties", {}).items():
        if "description" not in entry:
            missing.append(f"{path}.{name}")
        missing += find_undescribed(entry, f"{path}.{name}")
    return missing


def test_every_value_is_described_and_known() -> None:
    schema = json.loads((CHART / "values.schema.json").read_text())
    assert find_undescribed(schema) == []
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    assert values.keys() == schema["properties"].keys() - {"global"}
