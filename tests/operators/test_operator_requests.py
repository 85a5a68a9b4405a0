"""What a run costs the API server, counted in virtual time: with the watches telling, a run that trains costs a few requests a minute."""

from typing import Any

from test_operator_crashes import KubeRayWorld

from samite.engines.kuberay.api import LEASE, NODE, POD, RAY_CLUSTER

WATCHED = (POD, LEASE, RAY_CLUSTER, NODE)


def a_minute_of_training(world: KubeRayWorld, *, turn_s: int = 2) -> dict[str, int]:
    """Requests by verb and resource while a run trains for a minute, one turn each `turn_s`."""
    operator = world.operator
    before = len(world.crashing.api.calls)
    for second in range(60):
        world.tick()
        for kind in WATCHED:
            for document in world.crashing.every(kind):
                operator.cache.put(kind, document, told=True)
        if second % turn_s == 0:
            operator.cache.reconcile(world.runs, world.listing())
            operator.vitals.answered()
            operator.turns.take("team-a", "demo")
    made: dict[str, int] = {}
    for verb, plural, _ in world.crashing.api.calls[before:]:
        made[f"{verb} {plural}"] = made.get(f"{verb} {plural}", 0) + 1
    return made


def test_a_run_that_trains_costs_less_than_fifteen_requests_a_minute(make_operator: Any):
    from samite.engines.kuberay.api import TRAINING_RUN, Listing

    stage = {"name": "only", "contextLength": 128, "workers": {"min": 2, "max": 2}, "batch": {"tokens": 2048}, "budget": {"steps": 5000}}
    world = KubeRayWorld(make_operator, stages=[stage])
    world.runs = TRAINING_RUN
    world.listing = lambda: Listing(items=list(world.crashing.every(TRAINING_RUN)), resource_version=str(world.crashing.api._version))
    world.training.checkpoint_every = 1000
    try:
        while world.operator.phase != "Running":
            world.turn()
            world.tick()
        world.operator.cached.watched = frozenset({"trainingruns", *(kind.plural for kind in WATCHED)})
        a_minute_of_training(world)
        driver = sum(1 for verb, plural, _ in world.crashing.api.calls if (verb, plural) == ("patch", "leases"))
        made = a_minute_of_training(world)
    finally:
        world.engines.close()
    driver = sum(1 for verb, plural, _ in world.crashing.api.calls if (verb, plural) == ("patch", "leases")) - driver
    own = sum(made.values()) - made.get("patch leases", 0)
    assert driver == 60  # the played driver's renewals, which are not the operator's
    assert own <= 15, made
    assert made["patch trainingruns"] <= 7
