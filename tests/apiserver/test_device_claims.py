"""Device claims (DRA) on a real API server: it accepts every object, and defaults none of their fields."""

from typing import Any

import pytest

from tests.e2e.harness import Namespace
from tests.unit.test_plan_device_claims import CLAIMED, serving
from tests.unit.test_plan_engines_wanted import prepare

pytestmark = pytest.mark.apiserver


def store(namespace: Namespace, obj: dict[str, Any]) -> dict[str, Any]:
    """Return an object, without its owner, as the API server would store it."""
    metadata = {key: obj["metadata"][key] for key in ("name", "labels")}
    body = {item: obj[item] for item in ("apiVersion", "kind", "spec")}
    return namespace.create({**body, "metadata": metadata}, dry_run=True)


def test_the_api_server_takes_templates_jobs_and_deployments(namespace: Namespace) -> None:
    building = prepare(CLAIMED).misses()
    job = store(namespace, building.job("engine"))
    (claim,) = job["spec"]["template"]["spec"]["resourceClaims"]
    serves = serving()
    deployment = store(namespace, serves.the("Deployment"))
    assert deployment["spec"]["template"]["spec"]["resourceClaims"][0]["name"] == claim["name"]
    for entry in (building.the("ResourceClaimTemplate"), serves.the("ResourceClaimTemplate")):
        template = store(namespace, entry)
        assert template["spec"]["spec"] == entry["spec"]["spec"], "or each pass would write it"
