"""Properties of the spec over arbitrary input: nothing but a SamiteError leaves load_run, and documents survive the way through the models."""

import json
from pathlib import Path
from typing import Any

import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from samite.cli.validate import format_problems
from samite.errors import SamiteError, SpecError
from samite.spec import TrainingRun, load_run
from samite.spec.documentation import FieldDoc, field_docs, walk
from samite.spec.filled import filled_document
from samite.spec.rules import check_rules
from samite.spec.scalars import ScalarError, resolve_plain
from samite.spec.support import check_support
from samite.spec.yaml_tree import parse_yaml

SAMPLES = [file.read_text(encoding="utf-8") for file in sorted((Path(__file__).parent / "samples" / "good").glob("*.yaml"))]
BROKEN = [file.read_text(encoding="utf-8") for file in sorted((Path(__file__).parent / "broken").glob("*.yaml"))]
KEYS = sorted({path[-1] for path, _ in walk()})
SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(10**20), 10**20),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(max_size=20),
    st.sampled_from(
        ["8K", "10m", "on", "Carry", "s3://a/b", "file:///", "memory://", "builtin:quickstart", "RL", "tiny", "1e-5", "[/red]"]
    ),
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS) | st.text(max_size=6), inner, max_size=5),
    max_leaves=12,
)

RELAXED = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
"""The first example builds the models, and the machine may be busy."""


def load_or_refuse(text: str | bytes) -> None:
    """Fails on any exception but a SamiteError that says something."""
    said = ""
    try:
        said = json.dumps(load_run(text).run.to_document())
    except SpecError as refused:
        said = format_problems(refused) if refused.problems else ""
    except SamiteError as refused:
        said = str(refused)
    assert said


@RELAXED
@given(st.text(max_size=300))
def test_arbitrary_text_is_loaded_or_refused(text: str):
    load_or_refuse(text + "\n")


@RELAXED
@given(st.text(alphabet="&*!|>'\"%@`{}[]:,-?# \n\tab1.e~<=", max_size=120))
def test_arbitrary_yaml_punctuation_is_loaded_or_refused(text: str):
    load_or_refuse(text + "\n")


@RELAXED
@given(st.binary(max_size=200))
def test_arbitrary_bytes_are_loaded_or_refused(data: bytes):
    load_or_refuse(data)


@RELAXED
@given(st.sampled_from(SAMPLES + BROKEN), st.data())
def test_a_spec_with_a_piece_cut_out_or_doubled_is_loaded_or_refused(text: str, data: st.DataObject):
    start = data.draw(st.integers(0, len(text)))
    end = data.draw(st.integers(start, min(len(text), start + 60)))
    middle = data.draw(st.sampled_from(["", text[start:end] * 2, "\t", "~", "[", "1e999", "0", "-1", "x: &x {<<: *x}\n"]))
    load_or_refuse(text[:start] + middle + text[end:] + "\n")


@RELAXED
@given(st.dictionaries(st.sampled_from(KEYS), VALUES, max_size=4), VALUES, VALUES)
def test_arbitrary_values_in_the_right_places_are_loaded_or_refused(spec: dict[str, Any], stage: Any, metadata: Any):
    document = {"apiVersion": "samite.dev/v1alpha1", "kind": "TrainingRun", "metadata": metadata, "spec": {**spec, "stages": [stage]}}
    load_or_refuse(json.dumps(document))


@settings(RELAXED, max_examples=50)
@given(st.data())
def test_one_arbitrary_value_anywhere_in_a_full_document_is_loaded_or_refused(data: st.DataObject):
    document = load_full(data.draw(st.sampled_from(SAMPLES)))
    path, _ = data.draw(st.sampled_from(list(walk())))
    place: Any = document
    for key in path[:-1]:
        place = place[0] if isinstance(place, list) and place else place
        place = place.get(key) if isinstance(place, dict) else None
    if isinstance(place, dict):
        place[path[-1]] = data.draw(VALUES)
    load_or_refuse(json.dumps(document))


def load_full(text: str) -> dict[str, Any]:
    """A sample with every default written out."""
    return TrainingRun.from_document(yaml.safe_load(text)).to_document()


def value_of(doc: FieldDoc) -> st.SearchStrategy[Any]:
    """A value that the field's own schema allows."""
    if doc.model is not None:
        one = document_of(doc.model)
        return st.lists(one, min_size=1, max_size=2) if doc.is_list else one
    if doc.name == "overrides":
        return st.just({"num_layers": 4})
    if doc.name == "betas":
        return st.just([0.9, 0.99])
    if doc.name == "codes":
        return st.lists(st.integers(1, 92), min_size=1, max_size=3)
    if doc.base == "mapping":
        return st.dictionaries(st.text("abc", min_size=1, max_size=5), st.text(max_size=5), max_size=2)
    if doc.base == "boolean":
        return st.booleans()
    if doc.allowed:
        return st.sampled_from(doc.allowed)
    if doc.base == "text":
        return st.text("abcdefgh", min_size=1, max_size=8)
    numbers = [0.5, 2, 20, 60] if doc.base == "number" else [1, 2, 4, 64]
    return st.sampled_from(numbers)


def document_of(model: Any) -> st.SearchStrategy[dict[str, Any]]:
    docs = field_docs(model)
    required = {name: value_of(doc) for name, doc in docs.items() if doc.required}
    optional = {name: value_of(doc) for name, doc in docs.items() if not doc.required}
    return st.fixed_dictionaries(required, optional=optional)


@settings(RELAXED, max_examples=30)
@given(st.deferred(lambda: document_of(TrainingRun)))
def test_a_document_survives_the_way_through_the_models(document: dict[str, Any]):
    import pydantic

    try:
        run = TrainingRun.from_document(document)
    except pydantic.ValidationError:
        # Bounds of single fields; every document reaches the rules below all the same.
        run = None
    if run is not None:
        written = run.to_document()
        assert TrainingRun.from_document(written) == run
        assert TrainingRun.from_document(written).to_document() == written
        assert json.loads(json.dumps(written)) == written
    filled = filled_document(document)
    check_rules(filled)
    check_support(filled, Path("/nowhere"))


@RELAXED
@given(st.sampled_from(SAMPLES))
def test_filling_a_good_document_is_what_the_models_do(text: str):
    document = yaml.safe_load(text)
    assert filled_document(document) == TrainingRun.from_document(document).to_document()


@RELAXED
@given(st.text("0123456789+-._eExXoOaAbBfF", min_size=1, max_size=12))
def test_a_resolved_scalar_written_again_means_the_same(text: str):
    try:
        value = resolve_plain(text)
    except ScalarError:
        return
    assert parse_yaml(f"a: {json.dumps(value)}").value == {"a": value}
