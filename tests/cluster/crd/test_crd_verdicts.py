"""The shared samples in the real API server: the same verdict as `samite validate`, in the same words."""

from pathlib import Path

import pytest
import yaml
from box.kubectl import Kubectl
from verdicts import Verdict, lines, of_python, of_server, without_proposal

from samite.engines.kuberay.api_client import RealApi

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]

SPECS = Path(__file__).parents[2] / "platform" / "spec"
GOOD = sorted((SPECS / "samples" / "good").glob("*.yaml"))
BAD = sorted((SPECS / "samples" / "bad").glob("*.yaml"))

# Where the words differ, each with the reason; tests below hold that nothing else does.
NO_PROPOSAL = {
    "name-fits-both-engines.1": "CEL cannot put a name right",
    "name-fits-both-engines.2": "CEL cannot put a name right",
    "name-fits-both-engines.3": "CEL cannot put a name right",
    "name-fits-both-engines.4": "CEL cannot put a name right",
    "checkpoint-uri-is-known.1": "CEL does not look for the nearest known word; it lists all",
}
"""Sample -> why the API server proposes another way out, or none. What was wanted and found is the same."""

ALSO_BY_THE_SERVER = {
    "approvals-are-unique.1": "Duplicate value",
    "sources-are-unique.1": "Duplicate value",
    "sources-are-unique.2": "Duplicate value",
    "stage-names-are-unique.1": "Duplicate value",
    "variables-are-unique.1": "Duplicate value",
    "name-fits-both-engines.2": "a lowercase RFC 1123 subdomain",
    "name-fits-both-engines.4": "a lowercase RFC 1123 subdomain",
}
"""Sample -> what the API server says in its own words beside ours: list items have keys, and names of objects a form of their own."""


def both(api: RealApi, file: Path) -> tuple[Verdict, Verdict]:
    text = file.read_text(encoding="utf-8")
    return of_python(text), of_server(api, yaml.safe_load(text))


@pytest.mark.parametrize("file", GOOD, ids=lambda file: file.stem)
def test_a_good_sample_is_accepted_by_both(api: RealApi, file: Path):
    python, server = both(api, file)
    assert (python.accepted, server.accepted, server.other) == (True, True, ())


@pytest.mark.parametrize("file", BAD, ids=lambda file: file.stem)
def test_a_bad_sample_is_refused_by_both_in_the_same_words(api: RealApi, file: Path):
    python, server = both(api, file)
    assert python.said
    if file.stem in NO_PROPOSAL:
        assert lines(without_proposal(server.said)) == lines(without_proposal(python.said))
        assert lines(server.said) != lines(python.said), "the words are the same now: take it off the list"
    else:
        assert lines(server.said) == lines(python.said)


@pytest.mark.parametrize("file", BAD, ids=lambda file: file.stem)
def test_the_server_adds_words_of_its_own_only_where_this_is_known(api: RealApi, file: Path):
    _, server = both(api, file)
    expected = ALSO_BY_THE_SERVER.get(file.stem)
    assert [expected in text if expected else text for text in server.other] == ([True] if expected else [])


def test_kubectl_apply_prints_those_words(server: Kubectl):
    said = server("apply", "-f", str(SPECS / "samples" / "bad" / "levels-rise.1.yaml"), check=False)
    assert said.startswith('The TrainingRun "sample" is invalid: spec.restart.maxLevel: Invalid value: ')
    assert "wanted at least restart.startLevel (3); found 2; write maxLevel: 3, or startLevel: 2" in said
