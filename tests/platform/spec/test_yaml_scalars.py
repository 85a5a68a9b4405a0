"""One document, two readers: a plain scalar means here what it means under kubectl, or is refused (scenario S10).

The right column was read with kubectl 1.32.4: `kubectl annotate --local -f FILE k=v -o json`.
"""

import pytest

from samite.spec.scalars import ScalarError, resolve_plain
from samite.spec.yaml_tree import parse_yaml

READ_BY_KUBECTL = {
    "1e-5": 1e-05,
    "3e-4": 0.0003,
    "1_000": 1000,
    "0o10": 8,
    "-0o7": -7,
    "0x1f": 31,
    "0X1F": 31,
    "-0x1f": -31,
    "0x1F_F": 511,
    "0b11": 3,
    "+0b1": 1,
    "-0b11": -3,
    "0b12": "0b12",
    "0.5": 0.5,
    ".5": 0.5,
    "-.5": -0.5,
    ".5_0": 0.5,
    "5.": 5,
    "0.": 0,
    "0": 0,
    "-0": 0,
    "0.10": 0.1,
    "1e3": 1000,
    "1E3": 1000,
    "1e+3": 1000,
    "1.0": 1,
    "1_": 1,
    "1__0": 10,
    "_1": "_1",
    "1_0.5": 10.5,
    "+1_0e3": 10000,
    "+5": 5,
    "1e400": "1e400",
    "1e20": 100000000000000000000,
    "1e21": 1e21,
    "99999999999999999999": 100000000000000000000,
    "on": True,
    "On": True,
    "yes": True,
    "TRUE": True,
    "tRUE": "tRUE",
    "Off": False,
    "no": False,
    "~": None,
    "": None,
    "NULL": None,
    "nUll": "nUll",
    "12:30": "12:30",
    "1:2:3": "1:2:3",
    "2026-11-30": "2026-11-30",
    "2026-11-30T10:00:00Z": "2026-11-30T10:00:00Z",
    "=": "=",
    "<<": "<<",
    "-": "-",
    "+": "+",
    ".": ".",
    "1.2.3": "1.2.3",
    "v1": "v1",
    "1e": "1e",
    "0x": "0x",
    "infinity": "infinity",
    "NaN": "NaN",
}

READERS_DIFFER = [
    "010",
    "-010",
    "+010",
    "08",
    "00",
    "007",
    "0_8",
    "00.5",
    "01e3",
    "y",
    "Y",
    "n",
    "N",
    ".inf",
    "-.Inf",
    "+.INF",
    ".nan",
    ".NaN",
]


@pytest.mark.parametrize(("text", "value"), READ_BY_KUBECTL.items())
def test_a_plain_scalar_means_what_it_means_under_kubectl(text: str, value: object):
    found = resolve_plain(text)
    assert found == value
    assert type(found) is type(value) or (isinstance(found, int) and isinstance(value, int) and not isinstance(found, bool))


@pytest.mark.parametrize("text", READERS_DIFFER)
def test_a_plain_scalar_that_readers_understand_differently_is_refused(text: str):
    with pytest.raises(ScalarError):
        resolve_plain(text)


@pytest.mark.parametrize(
    ("text", "hint"), [("010", "write 10, "), ("-08", "write 8, "), ("00", "write 0, "), ("00.5", "write 0.5, "), ("y", "true or false")]
)
def test_a_refusal_says_how_to_write_it(text: str, hint: str):
    with pytest.raises(ScalarError) as refused:
        resolve_plain(text)
    assert hint in refused.value.hint


@pytest.mark.parametrize("text", [*READ_BY_KUBECTL, *READERS_DIFFER])
@pytest.mark.parametrize("quote", ["'", '"'])
def test_a_quoted_scalar_is_always_text(text: str, quote: str):
    tree = parse_yaml(f"a: {quote}{text}{quote}")
    assert (tree.value, tree.problems) == ({"a": text}, [])


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("x: &x {a: 1, b: 2}\ns:\n  <<: *x\n  b: 3\n", {"a": 1, "b": 3}),
        ("x: &x {a: 1, b: 2}\nz: &z {a: 9}\ns:\n  <<: [*z, *x]\n  c: 3\n", {"a": 9, "b": 2, "c": 3}),
        ("x: &x {a: 1, b: 2}\ns:\n  v: *x\n", {"v": {"a": 1, "b": 2}}),
        ("s:\n  a: &x 5\n  b: *x\n", {"a": 5, "b": 5}),
        ("s:\n  a: 1\t# c\n", {"a": 1}),
        ("s:\n  a:\t1\n", {"a": 1}),
        ('s:\n  "on": 1\n', {"on": 1}),
        ("s:\n  a: |\n    x\n    y\n", {"a": "x\ny\n"}),
        ("s:\n  a: 'x\n\n    y'\n", {"a": "x\ny"}),
        ("s: {a: 1,}\n", {"a": 1}),
        ("s:\n  a: 1\n...\n", {"a": 1}),
        ("s:\n  a: !!str 010\n", {"a": "010"}),
        ("s:\n  a: !!float 5\n", {"a": 5}),
        ("s:\n  a:\n", {"a": None}),
    ],
)
def test_a_document_means_what_it_means_under_kubectl(text: str, value: object):
    tree = parse_yaml(text)
    assert (tree.value["s"], tree.problems) == (value, [])


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ("s:\n  a: 1\n  b: 2\n  a: 2\n", 4, "stands in line 2 already"),
        ('{"a": 1,\n "a": 2}', 2, "stands in line 1 already"),
        ("x: &x {a: 1}\ns:\n  a: 3\n  <<: *x\n", 4, "keys above it"),
        ("s:\n  <<: {a: 1}\n  <<: 5\n", 3, "scalar"),
        ("s:\n  on: 1\n", 2, "true, which is not text"),
        ("s:\n  2: x\n", 2, "2, which is not text"),
        ("s:\n  ~: x\n", 2, "null, which is not text"),
        ("s:\n  010: x\n", 2, "leading zero"),
        ("s:\n  ? [a]\n  : 1\n", 2, "sequence"),
        ("s:\n\ta: 1\n", 2, "a tab"),
        ("s:\n  a: 1\n\tb: 1\n", 3, "a tab"),
        ("a: 1\n---\na: 2\n", 2, "a second one"),
        ("%YAML 1.1\n---\na: 2\n", 1, "begins with %"),
        ("a: *b\n", 1, "no such anchor"),
        ("a: &a [*a]\n", 1, "contains it"),
        ("a: b: c\n", 1, "mapping values"),
        ("a: @x\n", 1, "cannot start any token"),
        ("a: 1\n b: 1\n", 2, "mapping values"),
        ("a: [1, 2\n", 2, ""),
        ("a: !!binary aGk=\n", 1, "binary"),
        ("a: !!set {x, z}\n", 1, "set"),
        ("a: !!python/object/apply:os.system [ls]\n", 1, "python"),
        ("a: !foo bar\n", 1, "!foo"),
        ("a: !!int on\n", 1, "!!int"),
        ("a: .nan\n", 1, "JSON cannot hold"),
        ('{"a": 1_000}', 1, "Expecting"),
        ("a: x\x00y\n", 1, ""),
        ("a: \x07\n", 1, ""),
    ],
)
def test_what_cannot_be_read_alike_everywhere_is_refused_with_its_line(text: str, line: int, words: str):
    problems = parse_yaml(text).problems
    assert [problem.line for problem in problems] == [line]
    assert words in problems[0].found


def test_a_duplicate_key_is_refused_with_both_lines_even_in_an_anchor():
    problem = parse_yaml("x: &x\n  a: 1\n  a: 2\n").problems[0]
    assert (problem.path, problem.line) == ("x.a", 3)
    assert "line 2" in problem.found


def test_all_problems_of_a_document_are_told_at_once():
    tree = parse_yaml("a: 010\nb: y\nc: 1\nc: 2\n5: 1\n")
    assert [problem.line for problem in tree.problems] == [1, 2, 4, 5]


def test_aliases_that_multiply_end_early():
    levels = "\n".join(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, 12))
    tree = parse_yaml(f"a0: &a0 [x]\n{levels}\n")
    assert ["after aliases are followed" in problem.found for problem in tree.problems] == [True]


def test_deep_nesting_is_refused():
    assert "deeper nesting" in parse_yaml("a: " + "[" * 500).problems[0].found
    assert "nesting depth" in parse_yaml("a: " + "[" * 50_000).problems[0].found


def test_lines_are_those_of_the_keys_and_items():
    tree = parse_yaml("a:\n  b:\n    - c: 1\n    - {d: 2}\n")
    assert tree.line_of(("a", "b", 1, "d")) == 4
    assert tree.line_of(("a", "b", 0)) == 3
    assert tree.line_of(("a", "b", 0, "missing")) == 3


def test_a_merged_key_has_the_line_it_was_written_on():
    tree = parse_yaml("x: &x\n  a: 1\ns:\n  <<: *x\n  b: 2\n")
    assert (tree.line_of(("s", "a")), tree.line_of(("s", "b"))) == (2, 5)
