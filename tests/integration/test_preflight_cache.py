"""Results of models that have not changed: what they depend on, and that nothing hinders a run."""

from enginewright_runtime.prepare.fetch.locations import external_locations

from tests.support import broken_models as broken
from tests.support.preflight_runs import Desk


def test_external_data_is_part_of_the_model(desk: Desk) -> None:
    path = desk.save(broken.external("weights.bin"))
    data = desk.root / "weights.bin"
    data.write_bytes(broken.weights())
    assert external_locations(path) == ["weights.bin"]
    first = desk.run_json(path, "--target", "cpu")[1]
    again = desk.run_json(path, "--target", "cpu")[1]
    assert (first["cached"], again["cached"]) == (False, True)
    assert again["model"] == first["model"]
    data.write_bytes(bytes(reversed(broken.weights())))
    changed = desk.run_json(path, "--target", "cpu")[1]
    assert not changed["cached"]
    assert changed["model"]["digest"] != first["model"]["digest"]
    data.unlink()
    gone = desk.run_json(path, "--target", "cpu")[1]
    assert gone["targets"]["cpu"]["reason"] == "ExternalDataMissing"
