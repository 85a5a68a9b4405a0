"""The largest run that the format allows: the API server's limits on what rules may cost at run time hold for it too, right or wrong."""

import copy
from typing import Any

import pytest
import yaml
from verdicts import lines, of_python, of_server

from samite.engines.kuberay.api_client import RealApi

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]


def largest() -> dict[str, Any]:
    """Every list as long as it may be, every name as long as it may be."""
    carry = {"optimizer": "Carry", "lrSchedule": "Carry", "dataCursor": "Reset"}
    mixture = [{"source": f"source-{index:03}-".ljust(120, "x"), "weight": 1} for index in range(64)]
    stages = [
        {
            "name": f"s{index:02}-".ljust(39, "x") + "a",
            "contextLength": 8192 * (index + 1),
            "workers": {"min": 8, "max": 16},
            "gpusPerWorker": 8,
            "parallel": {"tensor": 2, "pipeline": 2, "context": 2, "expert": 4},
            "batch": {"tokens": 8192 * (index + 1) * 16},
            "budget": {"steps": 1000},
            "data": {"uri": f"s3://bucket/{index}", "mixture": mixture[: 64 if index == 15 else 8]},
            "gate": {"checks": [{"metric": "loss", "op": "<", "value": 3}] * 16},
            **({"handover": carry} if index else {}),
        }
        for index in range(16)
    ]
    env = [{"name": f"V{index:02}_".ljust(253, "X"), "value": "x" * 200} for index in range(64)]
    codes = [{"codes": [*range(1, 65)], "action": "Hold"} for _ in range(16)]
    return {
        "apiVersion": "samite.dev/v1alpha1",
        "kind": "TrainingRun",
        "metadata": {"name": "a" * 36},
        "spec": {
            "engine": "RayCluster",
            "checkpoint": {"uri": "s3://bucket/" + "x" * 4000, "interval": {"seconds": 60}},
            "data": {"uri": "s3://bucket/" + "x" * 4000, "mixture": mixture},
            "restart": {"exitCodes": codes},
            "env": env,
            "approvals": [{"stage": stage["name"], "by": "x" * 253, "reason": "x" * 4096} for stage in stages],
            "stages": stages,
        },
    }


def test_the_largest_run_is_accepted(api: RealApi):
    document = largest()
    assert len(yaml.safe_dump(document)) < 262_144
    assert of_python(yaml.safe_dump(document, width=10_000)).accepted
    assert of_server(api, document).other == ()
    assert of_server(api, document).accepted


def test_what_is_wrong_at_the_end_of_the_longest_lists_is_said_in_the_same_words(api: RealApi):
    document = copy.deepcopy(largest())
    spec = document["spec"]
    spec["env"][63]["name"] = spec["env"][62]["name"]
    spec["data"]["mixture"][63]["source"] = spec["data"]["mixture"][0]["source"]
    spec["stages"][15]["contextLength"] = 8192
    spec["approvals"][15]["stage"] = "nobody"
    spec["restart"]["exitCodes"][15]["codes"] = [*range(1, 64), 93]
    python, server = of_python(yaml.safe_dump(document, width=10_000)), of_server(api, document)
    assert len(python.said) >= 5
    assert lines(server.said) == lines(python.said)
