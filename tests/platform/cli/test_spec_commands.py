"""`samite validate`, `explain` and `schema` as a person runs them: streams, exit codes, and text that comes out as it went in (S1)."""

import io
import json
from pathlib import Path

import pytest
import typer
import yaml

from samite.cli import explain, schema, validate
from samite.errors import NotFoundError

GOOD = """\
apiVersion: samite.dev/v1alpha1
kind: TrainingRun
metadata: {name: tiny-run}
spec:
  stages:
    - {name: pretrain, contextLength: 256, batch: {tokens: 2048}, budget: {steps: 10}}
"""


def run(*arguments: str) -> int:
    app = typer.Typer(rich_markup_mode=None, pretty_exceptions_enable=False)
    for module in (validate, explain, schema):
        module.register(app)
    result = app(args=list(arguments), standalone_mode=False)
    return result if isinstance(result, int) else 0


@pytest.fixture
def spec(tmp_path: Path) -> Path:
    file = tmp_path / "run.yaml"
    file.write_text(GOOD)
    return file


def test_a_valid_spec_is_said_to_be_valid_on_stdout(spec: Path, capsys: pytest.CaptureFixture[str]):
    assert run("validate", "-f", str(spec)) == 0
    assert capsys.readouterr() == (f"{spec} is valid: tiny-run, 1 stage, 10 steps\n", "")


def test_problems_go_to_stderr_with_exit_code_three(spec: Path, capsys: pytest.CaptureFixture[str]):
    spec.write_text(GOOD.replace("256", "8K"))
    assert run("validate", "-f", str(spec)) == 3
    out, err = capsys.readouterr()
    assert out == ""
    assert f"{spec}:6  spec.stages[0].contextLength" in err
    assert "write 8192" in err


def test_json_goes_to_stdout_and_has_every_problem(spec: Path, capsys: pytest.CaptureFixture[str]):
    spec.write_text(GOOD.replace("256", "8K").replace("tiny-run", "Tiny"))
    assert run("validate", "-f", str(spec), "-o", "json") == 3
    out, err = capsys.readouterr()
    report = json.loads(out)
    assert (report["apiVersion"], report["kind"], err) == ("samite.dev/v1alpha1", "ValidationReport", "")
    assert [(problem["path"], problem["line"]) for problem in report["items"][0]["problems"]] == [
        ("metadata.name", 3),
        ("spec.stages[0].contextLength", 6),
    ]


def test_yaml_output_can_be_read_again(spec: Path, capsys: pytest.CaptureFixture[str]):
    assert run("validate", "-f", str(spec), "-o", "yaml") == 0
    assert yaml.safe_load(capsys.readouterr().out)["items"][0]["valid"] is True


def test_names_alone_are_for_scripts(spec: Path, capsys: pytest.CaptureFixture[str]):
    assert run("validate", "-f", str(spec), "-o", "name") == 0
    assert capsys.readouterr().out == "tiny-run\n"


def test_several_files_are_all_checked(spec: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    bad = tmp_path / "bad.yaml"
    bad.write_text(GOOD.replace("256", "255"))
    assert run("validate", "-f", str(bad), "-f", str(spec), "-f", str(tmp_path / "none.yaml")) == 3
    out, err = capsys.readouterr()
    assert "is valid: tiny-run" in out
    assert "bad.yaml:6" in err
    assert "none.yaml does not exist" in err


def test_a_missing_file_alone_is_not_found(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert run("validate", "-f", str(tmp_path / "none.yaml")) == NotFoundError.exit_code
    assert "does not exist" in capsys.readouterr().err


def test_a_spec_is_read_from_standard_input(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(GOOD.encode()), encoding="utf-8"))
    assert run("validate", "-f", "-") == 0
    assert "tiny-run" in capsys.readouterr().out


def test_set_changes_the_document_first(spec: Path, capsys: pytest.CaptureFixture[str]):
    assert run("validate", "-f", str(spec), "--set", "stages[0].budget.steps=20", "--set", "metadata.name=other") == 0
    assert "other, 1 stage, 20 steps" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["[v1]", "[/red]", "[bold]x", "a  b", "ü", "{x}", ":smile:", "%s"])
def test_any_path_comes_out_as_it_went_in(tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]):
    folder = tmp_path / name
    folder.mkdir(parents=True)
    file = folder / "run.yaml"
    file.write_text(GOOD.replace("256", "255"))
    assert run("validate", "-f", str(file)) == 3
    assert f"{file}:6  spec.stages[0].contextLength" in capsys.readouterr().err


@pytest.mark.parametrize("text", ["[a]", "[/red]", "[bold red]", "expected [2, 3] got [/A]", "a  b", "ü", "{0}", "%d"])
@pytest.mark.parametrize("output", ["table", "json"])
def test_any_value_comes_out_as_it_went_in(spec: Path, text: str, output: str, capsys: pytest.CaptureFixture[str]):
    spec.write_text(GOOD + f"  data: {{mixture: [{{source: {json.dumps(text)}, weight: 1}}]}}\n  {json.dumps('key ' + text)}: 1\n")
    assert run("validate", "-f", str(spec), "-o", output) == 3
    out, err = capsys.readouterr()
    said = err if output == "table" else "\n".join(problem["found"] for problem in json.loads(out)["items"][0]["problems"])
    assert f'"{text}"' in said
    assert f"the unknown key key {text}" in said


def test_no_control_character_of_a_spec_reaches_the_terminal(spec: Path, capsys: pytest.CaptureFixture[str]):
    spec.write_text(GOOD + '  "\\e[31mred\\a": 1\n')
    assert run("validate", "-f", str(spec)) == 3
    assert "\\x1b[31mred\\x07" in capsys.readouterr().err


def test_explain_prints_the_page_of_a_field(capsys: pytest.CaptureFixture[str]):
    assert run("explain", "stages.parallel") == 0
    out, err = capsys.readouterr()
    assert out.startswith("KIND:     TrainingRun\nVERSION:  samite.dev/v1alpha1\n\nFIELD:    spec.stages.parallel <Parallel>\n")
    assert "  context <integer, 1 to 1024>" in out
    assert err == ""


def test_explain_without_a_field_shows_the_top(capsys: pytest.CaptureFixture[str]):
    assert run("explain") == 0
    assert "  spec <RunSpec> -required-" in capsys.readouterr().out


def test_explain_in_json_is_one_document(capsys: pytest.CaptureFixture[str]):
    assert run("explain", "optimizer.name", "-o", "json") == 0
    assert json.loads(capsys.readouterr().out)["allowed"] == ["Muon", "AdamW"]


def test_explain_of_an_unknown_field_is_not_found():
    with pytest.raises(NotFoundError, match=r"stages\.parallel"):
        run("explain", "stages.paralel")


def test_schema_prints_json(capsys: pytest.CaptureFixture[str]):
    assert run("schema") == 0
    assert json.loads(capsys.readouterr().out)["title"] == "TrainingRun, samite.dev/v1alpha1"
