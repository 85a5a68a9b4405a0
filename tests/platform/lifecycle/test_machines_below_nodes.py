"""Where nodes come and go on machines (pods on Kubernetes nodes), the machine is blamed, and the node is exchanged."""

from dataclasses import replace

from samite.lifecycle import Memory, NodeFact, NodeObserved, NodeSays, Phase, ReplaceNode, Request, RequestKind, Source
from samite.lifecycle.blame import excluded
from samite.lifecycle.nodes import usable_nodes
from samite.lifecycle.observed import ClusterObserved, Observed
from samite.lifecycle.simulation import impatient, small_plan, small_run
from samite.lifecycle.turn import Turn


def on_machines(observed: Observed, machines: dict[str, str], *facts: NodeFact, on: str = "") -> Observed:
    """The same observation, with a machine below each node, and facts about one of them."""

    def put(node: NodeObserved) -> NodeObserved:
        return replace(node, host=machines.get(node.name, ""), facts=(*node.facts, *(facts if node.name == on else ())))

    clusters = tuple(replace(cluster, nodes=tuple(put(node) for node in cluster.nodes)) for cluster in observed.cluster)
    return replace(observed, cluster=clusters)


def running():
    engine = small_run(small_plan(detection=impatient()))
    engine.run_until(Phase.RUNNING)
    engine.run(5)
    workers = [node.name for node in engine.look().cluster[0].nodes if not node.head]
    return engine, {name: f"machine-{index}" for index, name in enumerate(workers)}, workers


def test_a_hardware_fault_excludes_the_machine_not_the_node():
    engine, machines, (first, *_) = running()
    fault = NodeFact(source=Source.DEVICE, says=NodeSays.HARDWARE_FAULT, detail="XID 79")
    decision = engine.turn(on_machines(engine.look(), machines, fault, on=first))
    assert excluded(decision.memory.blame, engine.world.now) == {machines[first]}
    assert "machine-0" in decision.status.excluded_nodes


def test_a_new_node_on_an_excluded_machine_is_not_used():
    cluster = ClusterObserved(cluster_id="c", nodes=(NodeObserved(name="pod-2", host="machine-0", ready=True),))
    engine, machines, (first, *_) = running()
    fault = NodeFact(source=Source.DEVICE, says=NodeSays.HARDWARE_FAULT, detail="XID 79")
    memory = engine.turn(on_machines(engine.look(), machines, fault, on=first)).memory
    assert memory.cluster is not None
    seen = Observed(at_s=engine.world.now, cluster=(replace(cluster, cluster_id=memory.cluster.cluster_id),))
    assert usable_nodes(Turn(engine.plan, seen, memory, engine.world.now)) == 0
    elsewhere = replace(seen, cluster=(replace(seen.cluster[0], nodes=(NodeObserved(name="pod-3", host="machine-9", ready=True),)),))
    assert usable_nodes(Turn(engine.plan, elsewhere, memory, engine.world.now)) == 1


def test_a_person_may_name_the_node_or_the_machine():
    engine, machines, (first, second, *_) = running()
    wishes = (
        Request(request_id="1", kind=RequestKind.EXCLUDE, argument=first),
        Request(request_id="2", kind=RequestKind.EXCLUDE, argument=machines[second]),
    )
    decision = engine.turn(replace(on_machines(engine.look(), machines), requests=wishes))
    assert excluded(decision.memory.blame, engine.world.now) == {machines[first], machines[second]}
    release = (Request(request_id="3", kind=RequestKind.UNCORDON, argument=first),)
    engine.world.tick()
    decision = engine.turn(replace(on_machines(engine.look(), machines), requests=release))
    assert excluded(decision.memory.blame, engine.world.now) == {machines[second]}


def test_the_replacement_of_a_node_is_kept_off_excluded_machines():
    engine, machines, (first, *_) = running()
    wish = (Request(request_id="1", kind=RequestKind.EXCLUDE, argument=first),)
    engine.turn(replace(on_machines(engine.look(), machines), requests=wish))
    engine.world.tick()
    restart = (Request(request_id="2", kind=RequestKind.RESTART),)
    found: list[ReplaceNode] = []
    decision = engine.turn(replace(on_machines(engine.look(), machines), requests=restart))
    for _ in range(30):
        found += [action for action in decision.actions if isinstance(action, ReplaceNode)]
        engine.world.tick()
        decision = engine.turn(on_machines(engine.look(), machines))
    assert found
    assert {action.node for action in found} == {first}
    assert all(action.exclude_nodes == {machines[first]} for action in found)


def test_memory_of_an_older_engine_without_machines_is_read():
    text = Memory().to_json().replace('"machines":[],', "")
    assert Memory.from_json(text) == Memory()
