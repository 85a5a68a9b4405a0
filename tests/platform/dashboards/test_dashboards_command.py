"""`samite dashboards` and `samite alerts`: what they write is what Grafana, Kubernetes, Prometheus and Alertmanager read; no extra is needed."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from samite.cli.app import run
from samite.dashboards.alerts import ALERTS
from samite.dashboards.boards import BOARDS


def test_boards_are_written_as_json_for_grafana(tmp_path: Path, capsys):
    assert run(["dashboards", "export", "--out", str(tmp_path / "new")]) == 0
    written = {file.name: json.loads(file.read_text()) for file in (tmp_path / "new").iterdir()}
    assert {name: document["title"] for name, document in written.items()} == {f"{board.uid}.json": board.title for board in BOARDS}
    assert "wrote" in capsys.readouterr().err


def test_boards_are_written_as_config_maps_for_the_sidecar(tmp_path: Path):
    assert run(["dashboards", "export", "--format", "configmap", "--folder", "Training", "--out", str(tmp_path)]) == 0
    for file in tmp_path.iterdir():
        document = yaml.safe_load(file.read_text())
        assert (document["kind"], document["metadata"]["labels"]["grafana_dashboard"]) == ("ConfigMap", "1")
        assert document["metadata"]["annotations"] == {"grafana_folder": "Training"}
        ((name, text),) = document["data"].items()
        assert json.loads(text)["uid"] == name.removesuffix(".json") == document["metadata"]["name"]


def test_one_board_goes_to_stdout(capsys):
    assert run(["dashboards", "export", "--name", "samite-run"]) == 0
    assert json.loads(capsys.readouterr().out)["uid"] == "samite-run"


def test_a_stream_of_config_maps_is_one_yaml_stream(capsys):
    assert run(["dashboards", "export", "--format", "configmap"]) == 0
    assert len(list(yaml.safe_load_all(capsys.readouterr().out))) == len(BOARDS)


def test_an_unknown_board_is_told_with_those_that_exist(capsys):
    assert run(["dashboards", "export", "--name", "samite-runs"]) != 0
    assert "samite-run" in capsys.readouterr().err


def test_a_folder_that_cannot_be_written_is_an_error_of_one_line(tmp_path: Path, capsys):
    (tmp_path / "file").touch()
    assert run(["alerts", "export", "--out", str(tmp_path / "file")]) != 0
    assert "Choose another folder with --out" in capsys.readouterr().err


def test_boards_and_alerts_are_listed(capsys):
    assert run(["dashboards", "ls", "-o", "name"]) == 0
    assert set(capsys.readouterr().out.split()) == {board.uid for board in BOARDS}
    assert run(["alerts", "ls", "-o", "json"]) == 0
    assert [item["name"] for item in json.loads(capsys.readouterr().out)["items"]] == [alert.name for alert in ALERTS]


@pytest.mark.parametrize(("format_", "key"), [("rules", "groups"), ("prometheusrule", "spec"), ("inhibit", "inhibit_rules")])
def test_alerts_are_written_for_whoever_reads_them(format_: str, key: str, tmp_path: Path):
    assert run(["alerts", "export", "--format", format_, "--out", str(tmp_path)]) == 0
    assert yaml.safe_load((tmp_path / f"samite-{format_}.yaml").read_text())[key]


def test_the_operators_group_can_be_left_out(capsys):
    assert run(["alerts", "export", "--group", "runs", "--group", "training"]) == 0
    assert [group["name"] for group in yaml.safe_load(capsys.readouterr().out)["groups"]] == ["samite-runs", "samite-training"]
    assert run(["alerts", "export", "--group", "run"]) == 2


def test_neither_command_loads_the_sdk():
    code = (
        "import sys; from samite.cli.app import run; run(['dashboards', 'ls']); run(['alerts', 'ls']);"
        "run(['dashboards', 'export', '--format', 'configmap']); print('grafana_foundation_sdk' in sys.modules, file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stderr.split()[-1] == "False"
