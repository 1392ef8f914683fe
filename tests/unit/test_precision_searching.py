"""Which nodes are left out: found by measuring few groups, within what is allowed."""

import pytest
from enginewright_runtime.core.time_limit import TimeLimit
from enginewright_runtime.prepare.quantize.searching import Budget, Exclusions, TrialProof, search


class Costs:
    """Units that cost something each, added up; parity holds up to a limit."""

    def __init__(self, costs: dict[int, float], units: int, limit: float) -> None:
        self.costs = costs
        self.units = tuple(range(units))
        self.limit = limit
        self.trials: list[frozenset[int]] = []

    def __call__(self, excluded: frozenset[int]) -> TrialProof:
        assert excluded not in self.trials, "measured twice"
        self.trials.append(excluded)
        error = sum(self.costs.get(unit, 1e-6) for unit in self.units if unit not in excluded)
        return TrialProof(error <= self.limit, error)

    def search(self, allowed: int, trials: int = 64) -> Exclusions:
        return search(self.units, self, allowed, Budget(trials, TimeLimit(60.0)))


def test_one_dear_node_of_many_is_found() -> None:
    units = Costs({77: 0.5}, 200, 0.1).search(50)
    assert units.excluded == frozenset({77})
    assert 77 in units.groups[0].units


def test_dear_nodes_far_apart_are_found_in_few_trials() -> None:
    costs = Costs({3: 0.3, 90: 0.2, 91: 0.1, 400: 0.4}, 500, 0.05)
    units = costs.search(20)
    assert units.excluded is not None
    assert {3, 90, 91, 400} >= set(units.excluded) >= {3, 90, 400}
    assert units.trials == len(costs.trials) <= 64


def test_no_more_is_left_out_than_suffices() -> None:
    units = Costs({1: 0.5, 2: 0.3, 3: 0.2}, 64, 0.4).search(16)
    assert units.excluded in {frozenset({1, 2}), frozenset({1, 3})}


def test_no_more_is_left_out_than_is_allowed() -> None:
    result = Costs(dict.fromkeys(range(0, 64, 8), 0.1), 64, 0.05).search(7)
    assert result.excluded is None
    dearest = [group.units for group in result.groups[:8]]
    assert all(len(units) == 1 for units in dearest)
    assert {unit for (unit,) in dearest} == set(range(0, 64, 8))


def test_a_hopeless_search_ends_early() -> None:
    """Every node costs as much: once single nodes were left out, no other choice can be better."""
    costs = Costs(dict.fromkeys(range(16), 0.1), 16, 0.05)
    assert costs.search(4).excluded is None
    assert len(costs.trials) < 40


def test_the_budget_bounds_trials_and_time() -> None:
    costs = Costs(dict.fromkeys(range(0, 512, 2), 0.1), 512, 0.05)
    assert costs.search(100, trials=20).excluded is None
    assert len(costs.trials) == 20


@pytest.mark.parametrize("spent", [("elapsed",), ("processor",), ("elapsed", "processor")])
def test_a_search_ends_when_both_clocks_are_over(spent: tuple[str, ...]) -> None:
    """Neither the load of other processes nor many cores leave fewer trials."""
    now = {"elapsed": 0.0, "processor": 0.0}
    limit = TimeLimit(10.0, (lambda: now["processor"], lambda: now["elapsed"]))
    now |= dict.fromkeys(spent, 11.0)
    costs = Costs({1: 1.0}, 8, 0.1)
    units = search(costs.units, costs, 2, Budget(64, limit))
    assert (units.excluded is None) == (not costs.trials) == (len(spent) == len(now))


@pytest.mark.parametrize("allowed", [0, 1])
def test_one_node_alone(allowed: int) -> None:
    costs = Costs({0: 1.0}, 1, 0.1)
    assert costs.search(allowed).excluded == (frozenset({0}) if allowed else None)
