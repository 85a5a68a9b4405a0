"""Every metric of the registry with one value, and every event, sent by the code that sends them in a run: for the golden files of what others receive."""

from pathlib import Path

from samite.engines.node_agent.collect import Agent
from samite.engines.node_agent.readings import Reading, Run
from samite.engines.node_agent.serve import OtlpAgent
from samite.telemetry import names
from samite.telemetry.agent_metrics import RANK_METRICS
from samite.telemetry.instruments import Metric
from samite.telemetry.records import Point
from samite.telemetry.setup import setup_telemetry

STAGE = {"samite.stage.name": "extend", "samite.stage.kind": "Extend"}


class TellsAll(Agent):
    """An agent that has something to say of each of its metrics."""

    def look(self) -> tuple[Reading, ...]:
        run = Run(name="demo", uid="u1", namespace="team-a")
        return tuple(
            Reading(name=metric.name, value=1.0, attributes=attributes_of(metric), run=run if metric in RANK_METRICS else Run()).checked()
            for metric in names.METRICS.values()
            if metric.source == "agent"
        )


def attributes_of(metric: Metric) -> dict[str, str]:
    """One allowed value for each."""
    return {key: (names.ATTRIBUTES[key].values or ("0",))[0] for key in metric.attributes}


def send(endpoint: str, folder: Path) -> None:
    """Returns when all of it has been delivered."""
    with setup_telemetry(
        service="samite-trainer", run="demo", uid="u1", otlp_endpoint=endpoint, stage=STAGE, instance="rank-0"
    ) as telemetry:
        points = [Point(metric.name, 1.0, attributes_of(metric)) for metric in names.METRICS.values() if metric.source != "agent"]
        telemetry.record_step(1, points)
        for event in names.EVENTS.values():
            telemetry.event(event.name)
    agent = TellsAll(node="node-1", source=None)
    OtlpAgent(agent, endpoint, interval_s=60.0, resource={"samite.run.name": "demo", "samite.run.uid": "u1"}).stop(10.0)
    agent.close()
