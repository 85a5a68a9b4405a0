"""Every rule against the shared samples: the same files that the API server's CEL must accept and refuse."""

import re
from pathlib import Path

import pytest

from samite.spec.filled import filled_document
from samite.spec.rules import all_rules, check_rules
from samite.spec.schema_problems import check_schema
from samite.spec.yaml_tree import parse_yaml

SAMPLES = Path(__file__).parent / "samples"
GOOD = sorted((SAMPLES / "good").glob("*.yaml"))
BAD = sorted((SAMPLES / "bad").glob("*.yaml"))
SCHEMA_SAYS_IT_TOO = {"name-fits-both-engines"}


def broken_rules(file: Path) -> list[str]:
    tree = parse_yaml(file.read_text(encoding="utf-8"))
    assert tree.problems == []
    problems = check_schema(tree).problems
    if file.name.partition(".")[0] not in SCHEMA_SAYS_IT_TOO:
        assert problems == (), "a sample breaks a rule, not the schema"
    return sorted({rule.name for rule, _ in check_rules(filled_document(tree.value))})


@pytest.mark.parametrize("file", GOOD, ids=lambda file: file.stem)
def test_a_good_sample_breaks_no_rule(file: Path):
    assert broken_rules(file) == []


@pytest.mark.parametrize("file", BAD, ids=lambda file: file.stem)
def test_a_bad_sample_breaks_the_rule_it_is_named_after_and_no_other(file: Path):
    assert broken_rules(file) == [file.name.partition(".")[0]]


def test_every_rule_has_a_bad_sample():
    assert {file.name.partition(".")[0] for file in BAD} == {rule.name for rule in all_rules()}


def test_rule_names_are_unique_and_fit_a_file_name():
    names = [rule.name for rule in all_rules()]
    assert len(set(names)) == len(names)
    assert [name for name in names if not re.fullmatch(r"[a-z0-9-]+", name)] == []


def test_every_rule_says_what_the_api_server_will_evaluate_and_say():
    assert [rule.name for rule in all_rules() if not rule.cel or not rule.message] == []
    texts = [(rule.name, text) for rule in all_rules() for cel in rule.cel for text in (cel.holds, cel.message_expression)]
    assert [name for name, text in texts if any(text.count(a) != text.count(b) for a, b in ("()", "[]"))] == []


def test_rules_are_silent_about_a_document_without_any_content():
    assert check_rules({}) == []
    assert check_rules({"spec": None}) == []
