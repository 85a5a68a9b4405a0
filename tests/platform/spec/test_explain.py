"""`explain` and the documentation behind it: every field says what it is, its unit, and why its default is what it is."""

import re

import pytest

from samite.errors import NotFoundError
from samite.spec.documentation import field_docs, summary, walk
from samite.spec.explain import explain, explanation_text
from samite.spec.model_fields import MODEL_FIELDS
from samite.spec.run import TrainingRun
from samite.spec.scalars import ScalarError, resolve_plain

FIELDS = [(".".join(path), doc) for path, doc in walk()]


def test_every_field_has_a_documentation_that_is_a_sentence():
    assert [path for path, doc in FIELDS if not re.match(r"[A-Z`].*\.$", doc.documentation, re.DOTALL)] == []


def test_every_number_has_a_unit_and_every_default_a_word():
    # A name says the unit of these: seeds have none, levels and exit codes are numbers of a list, a bound has that of its metric.
    without_unit = {"seed", "shuffleSeed", "startLevel", "maxLevel", "codes", "gradNormMads"}
    numbers = [(path, doc) for path, doc in FIELDS if doc.base in {"integer", "number"} and doc.name not in without_unit]
    assert [path for path, doc in numbers if "Unit:" not in doc.documentation] == []
    defaults = [(path, doc) for path, doc in FIELDS if doc.base in {"integer", "number", "boolean"} and doc.default is not None]
    assert [path for path, doc in defaults if "efault" not in doc.documentation] == []


def test_every_closed_set_says_its_default_or_that_there_is_none():
    sets = [(path, doc) for path, doc in FIELDS if len(doc.allowed) > 1 and not doc.required]
    assert [path for path, doc in sets if "efault" not in doc.documentation] == []


def test_every_model_says_what_it_is():
    models = {doc.model for _, doc in FIELDS if doc.model is not None} | {TrainingRun}
    assert [model.__name__ for model in models if len(summary(model)) < 10] == []


def test_no_allowed_word_is_one_that_yaml_takes_for_something_else():
    def as_yaml(word: str) -> object:
        try:
            return resolve_plain(word)
        except ScalarError:
            return None

    # Operators begin with > and need quotes, which their documentation says.
    words = {word for _, doc in FIELDS if doc.base != "boolean" for word in doc.allowed if word not in {"<", "<=", ">", ">="}}
    assert [word for word in sorted(words) if as_yaml(word) != word] == []


def test_field_names_are_camel_case():
    assert [path for path, doc in FIELDS if not re.fullmatch(r"[a-z][a-z0-9]*([A-Z][a-z0-9]*)*", doc.name)] == []


@pytest.mark.parametrize(
    ("asked", "path"),
    [
        ("", ""),
        ("TrainingRun", ""),
        ("spec", "spec"),
        ("stages.parallel", "spec.stages.parallel"),
        ("spec.stages.parallel", "spec.stages.parallel"),
        ("spec.stages[0].parallel.context", "spec.stages.parallel.context"),
        ("stages[].parallel", "spec.stages.parallel"),
        ("learningRate", "spec.optimizer.learningRate"),
        ("hang.floorSeconds", "spec.detection.hang.floorSeconds"),
        ("model.overrides.num_experts", "spec.model.overrides.num_experts"),
        ("num_experts", "spec.model.overrides.num_experts"),
        ("metadata.name", "metadata.name"),
    ],
)
def test_a_field_is_found_by_any_path_that_means_one(asked: str, path: str):
    assert explain(asked).path == path


def test_an_ambiguous_name_lists_its_places():
    with pytest.raises(NotFoundError, match=r"spec\.checkpoint\.interval\.steps"):
        explain("steps")


@pytest.mark.parametrize(
    ("asked", "meant"), [("stages.paralel", "stages.parallel"), ("optimiser.name", "optimizer.name"), ("[/red]", "--recursive")]
)
def test_an_unknown_path_names_the_nearest(asked: str, meant: str):
    with pytest.raises(NotFoundError, match=re.escape(meant)):
        explain(asked)


def test_a_field_shows_type_default_and_allowed_values():
    text = explanation_text(explain("restart.onExhausted"))
    assert "FIELD:    spec.restart.onExhausted <one of Hold, Fail>" in text
    assert "DEFAULT:  Hold" in text
    assert "ALLOWED:  Hold, Fail" in text


def test_a_mapping_shows_its_fields_with_their_texts():
    text = explanation_text(explain("stages.budget"))
    assert "  steps <integer, at least 1>\n      Optimizer steps to train in this stage. Unit: steps." in text
    assert "-required-" in text.splitlines()[3]


def test_required_fields_are_marked():
    assert "contextLength <integer, 16 to 16777216> -required-" in explanation_text(explain("stages"))


def test_recursive_shows_everything_below_without_texts():
    text = explanation_text(explain("", recursive=True))
    assert text.count("\n") > len(FIELDS)
    assert "        floorSeconds <number, above 0>" in text
    assert "A hang is never shorter" not in text


def test_overrides_list_the_fields_of_the_model_with_the_values_of_the_presets():
    children = {child.path.rpartition(".")[2]: child for child in explain("model.overrides").children}
    assert set(children) == set(MODEL_FIELDS) - {"balancing"}
    assert "tiny 16, small 128" in children["num_experts"].documentation


def test_an_explanation_is_json_able_and_complete():
    document = explain("optimizer").to_document()
    assert [child["path"].rpartition(".")[2] for child in document["fields"]] == list(field_docs(type_of("optimizer")))
    assert document["fields"][1]["default"] == 0.001


def type_of(name: str) -> type:
    return next(doc.model for path, doc in walk() if path == ("spec", name))
