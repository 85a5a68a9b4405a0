"""The report of any folder is one well-formed page that loads nothing, hides nothing and cannot be injected into."""

import base64
import hashlib
import html.parser
import json
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from samite.report import build_report
from samite.report.run_data import CheckpointRow
from samite.telemetry.events import EventLog

VOID = {"meta", "input", "br", "line", "path", "rect", "circle"}


class Page(html.parser.HTMLParser):
    """Checks that every element is closed in order; collects ids, texts and attributes."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.ids: list[str] = []
        self.tags: list[str] = []
        self.text: list[str] = []
        self.attributes: list[tuple[str, str, str | None]] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += [(tag, key, value) for key, value in attrs]
        self.ids += [value for key, value in attrs if key == "id"]
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        if tag not in VOID:
            assert self.open.pop() == tag

    def handle_data(self, data):
        if not self.open or self.open[-1] not in {"script", "style"}:
            self.text.append(data)

    @property
    def words(self) -> str:
        return " ".join(" ".join(self.text).split())


@pytest.fixture(scope="module")
def report(whole_run: Path) -> str:
    return build_report(whole_run, now_unix_s=1_764_700_000.0)


def test_the_page_is_well_formed_and_its_ids_are_unique(report: str):
    page = Page(report)
    assert len(page.ids) == len(set(page.ids))
    assert {"timeline", "learning", "recovery", "speed", "experts", "decay", "memory", "checkpoints", "events", "environment"} <= set(
        page.ids
    )
    assert "gaps" not in page.ids


def test_links_and_labels_of_the_page_lead_somewhere(report: str):
    page = Page(report)
    targets = [value for tag, key, value in page.attributes if key == "href"]
    assert targets
    assert {target.removeprefix("#") for target in targets} <= set(page.ids)
    labelled = {value for _, key, value in page.attributes if key == "aria-labelledby"}
    assert labelled <= set(page.ids)


def test_the_page_loads_nothing(report: str):
    page = Page(report)
    assert not [value for _, key, value in page.attributes if key in {"src", "srcset", "action", "background", "poster"}]
    assert not {"link", "img", "iframe", "object", "embed", "base"} & set(page.tags)
    assert not re.search(r"@import|url\(|fetch\(|XMLHttpRequest|WebSocket|import\(|//[a-z]+\.[a-z]+/", report)


def test_only_the_reports_own_script_may_run(report: str):
    policy = next(value for tag, key, value in Page(report).attributes if tag == "meta" and key == "content" and "script-src" in value)
    scripts = re.findall(r"<script>(.*?)</script>", report, flags=re.DOTALL)
    assert len(scripts) == 1
    digest = base64.b64encode(hashlib.sha256(scripts[0].encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}'" in policy
    assert policy.startswith("default-src 'none'")
    assert not [key for _, key, _ in Page(report).attributes if key.startswith("on")]


def test_the_header_says_the_six_lines(report: str):
    words = Page(report).words
    for line in (
        "Steps 210 2 stages",
        "Tokens 3.38 M",
        "Restarts 1 1 infra",
        "Detect, recover 1.4 s, 18 s",
        "Recomputed steps 17 7.5 %",
        "Effective time 73.",
    ):
        assert line in words
    assert "210 steps on 3.38 M tokens in 3 min 2" in words
    assert "one failure, training again 18.4 s after the fault." in words


def test_restarts_stages_and_steps_that_were_trained_again_are_marked(report: str):
    assert 'title="restart: quickstart-s01-a3 goes on at step 151"' in report
    assert 'class="mark-label stage"' in report
    assert "trained again after a restart" in report
    assert len(re.findall(r'class="line c\d faded"', report)) > 3


def test_each_chart_tells_a_screen_reader_what_it_shows(report: str):
    labels = [value for tag, key, value in Page(report).attributes if tag == "div" and key == "aria-label" and value.startswith("Loss.")]
    assert len(labels) == 1
    assert re.search(r"text: from [\d.]+ to [\d.]+, between [\d.]+ and [\d.]+\.", labels[0])
    plots = [key for tag, key, value in Page(report).attributes if key == "data-chart"]
    assert len(plots) >= 13


def test_the_numbers_for_the_script_are_json_and_lie_inside_their_range(report: str):
    blocks = re.findall(r'<script type="application/json" id="data-([a-z-]+)">(.*?)</script>', report)
    assert len(blocks) >= 13
    for key, block in blocks:
        data = json.loads(block)
        assert data["lines"], key
        for line in data["lines"]:
            assert len(line["x"]) == len(line["text"])
            assert all(data["from"] <= x <= data["to"] for x in line["x"])
            assert line["x"] == sorted(line["x"])


def test_checkpoints_of_the_catalogue_win_and_those_it_lost_are_gone(whole_run: Path):
    rows = [
        CheckpointRow(checkpoint_id="e0003-i0-s000000210", step=210, state="verified", num_bytes=2**20),
        CheckpointRow(checkpoint_id="x", step=1, state="quarantined", reason="hash of shard 3 <differs>"),
    ]
    words = Page(build_report(whole_run, checkpoints=rows)).words
    assert "210 verified - 1 MiB" in words
    assert "hash of shard 3 <differs>" in words
    assert "180 not stored extend-4k" in words


@pytest.mark.parametrize("missing", ["events.jsonl", "status.json", "spec.json", "run.yaml", "metrics/rank-0.jsonl", "metrics"])
def test_a_missing_file_costs_its_part_and_is_named(small_run: Path, tmp_path: Path, missing: str):
    folder = shutil.copytree(small_run, tmp_path / "run")
    shutil.rmtree(folder / missing) if (folder / missing).is_dir() else (folder / missing).unlink()
    words = Page(build_report(folder)).words
    if missing in {"events.jsonl", "status.json", "spec.json", "metrics"}:
        assert "What this report could not see" in words
        assert missing in words
    assert "quickstart" in words or missing == "spec.json"


@pytest.mark.parametrize("name", ["events.jsonl", "status.json", "spec.json", "run.yaml", "metrics/rank-0.jsonl", "metrics/rank-1.jsonl"])
@pytest.mark.parametrize(
    "damage",
    [
        b"",
        b"\0" * 5000,
        b"\x80\xff\xfe broken \xf0\x9f",
        b"[1, 2, 3]",
        b"null",
        b'{"run": 3, "phase": [], "ettr": 7, "recoveries": [3, {"atS": "x"}], "restarts": {"a": null}, "progress": "none"}',
        b'{"time": "now", "points": {}}\n{"time": 1, "step": "x", "points": [[1]]}\n',
        b'{"time": 1e400, "step": 9e99, "points": [["samite.loss", "NaN", {}]], "name": "x", "attributes": {"a": {"b": [1]}}}\n',
        b'{"time": 1, "step": 1' + b"0" * 400 + b', "points": [["samite.loss", 1' + b"0" * 400 + b", {}]]}\n",
        b"{" * 100_000,
    ],
    ids=["empty", "NUL", "not UTF-8", "list", "null", "wrong types", "wrong lines", "infinite", "huge", "deep"],
)
def test_a_damaged_file_still_gives_a_page(small_run: Path, tmp_path: Path, name: str, damage: bytes):
    folder = shutil.copytree(small_run, tmp_path / "run")
    (folder / name).write_bytes(damage)
    assert Page(build_report(folder)).words.strip()


@pytest.mark.parametrize("keep", [10, 1000, 5000, 20_001])
def test_files_cut_anywhere_still_give_a_page(small_run: Path, tmp_path: Path, keep: int):
    folder = shutil.copytree(small_run, tmp_path / "run")
    for file in (path for path in folder.rglob("*") if path.is_file()):
        os.truncate(file, min(keep, file.stat().st_size))
    assert "What this report could not see" in Page(build_report(folder)).words


def test_an_empty_folder_and_a_missing_one_give_a_page(tmp_path: Path):
    for folder in (tmp_path, tmp_path / "none"):
        words = Page(build_report(folder)).words
        assert "No step was recorded yet." in words
        assert "metrics/rank-*.jsonl: not there, so there are no curves." in words
        assert "never had to recover" not in words
        assert "Restarts - Detect, recover - Recomputed steps - Effective time -" in words


HOSTILE = [
    "[/red]",
    "[bold]x[/bold]",
    "<script>alert(1)</script>",
    "</script><script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    "\"><svg/onload=alert(1)>' x='",
    "<!--",
    "]]>",
    "&lt;b&gt; &amp;",
    "\u202egnp.exe",
    "\ud800",
    "a\0b\x1b[31m",
    "{{7*7}} ${7*7} %s {0}",
]


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_text_is_shown_and_never_becomes_markup(small_run: Path, tmp_path: Path, report: str, text: str):
    folder = shutil.copytree(small_run, tmp_path / "run")
    log = EventLog(folder / "events.jsonl", resource={"service.version": text})
    log.emit("samite.run.held", reason=text, message=text, node=text, evidence=[text], failure_class=text, stage_name=text)
    log.emit("samite.run.phase.changed", phase_from=text, phase_to="Held", reason=text)
    log.emit("samite.failure.detected", failure_class=text, fault_time=1.0, evidence=[text])
    log.emit("samite.checkpoint.quarantined", checkpoint_id=text, step_index=3, reason=text, stage_name=text)
    record = {"time": 1_764_600_500.0, "step": 300, "attempt": text, "incarnation": 0, "stage": {"samite.stage.name": text}}
    points = [["samite.loss", 1.0, {"samite.loss.kind": "total"}], ["samite.decay.tile.margin", 3.0, {"samite.layer.block": text}]]
    with (folder / "metrics/rank-0.jsonl").open("a") as file:
        file.write(json.dumps({**record, "points": points}) + "\n")
    (folder / "run.yaml").write_text(text, errors="replace")
    (folder / "status.json").write_text(
        json.dumps({"phase": "Held", "message": text, "recoveries": [{"failureClass": text, "errorType": text, "detectS": 1}]})
    )
    spec = {"metadata": {"name": text}, "spec": {"engine": text, "model": {"preset": text}, "seed": text}}
    (folder / "spec.json").write_text(json.dumps({"uid": text, "run": spec}))
    report = build_report(folder)
    report.encode("utf-8")
    page = Page(report)
    assert set(page.tags) <= set(Page(report).tags) | {"p", "b", "ul", "li"}
    assert page.tags.count("script") == report.count("<script")
    assert not [key for _, key, _ in page.attributes if key.startswith("on")]
    assert not re.search("[\x00\x1b\u202e\ud800]", report)
    if text.isprintable() and text.isascii():
        assert text in " ".join(page.text)


@pytest.mark.parametrize(
    ("text", "secret"),
    [
        ("spec:\n  env:\n    - name: HF_TOKEN\n      value: hf_abcdef\n", "hf_abcdef"),
        ("checkpoint:\n  secret_access_key: wJalrXUtnFEMI\n", "wJalrXUtnFEMI"),
        ("uri: s3://user:pa55word@host/bucket\n", "pa55word"),
        ("key: AKIAIOSFODNN7EXAMPLE\n", "AKIAIOSFODNN7EXAMPLE"),
        ('{"password": "hunter2", "a": 1}', "hunter2"),
    ],
)
def test_what_looks_like_a_credential_is_hidden(small_run: Path, tmp_path: Path, text: str, secret: str):
    folder = shutil.copytree(small_run, tmp_path / "run")
    (folder / "run.yaml").write_text(text)
    EventLog(folder / "events.jsonl").emit("samite.run.held", reason="cannot reach s3://user:pa55word@host/bucket")
    report = build_report(folder)
    assert secret not in report
    assert "pa55word" not in report
    assert "[hidden]" in report


def test_the_number_of_tokens_is_no_secret(small_run: Path, tmp_path: Path):
    folder = shutil.copytree(small_run, tmp_path / "run")
    (folder / "run.yaml").write_text("batch:\n  tokens: 16384\ntokenizer: bpe\nsecretName: samite-s3\n")
    words = Page(build_report(folder)).words
    assert "tokens: 16384 tokenizer: bpe secretName: samite-s3" in words


def test_a_run_without_a_failure_says_so(write_run: Callable[..., Path], tmp_path: Path):
    words = Page(build_report(write_run(tmp_path / "run", kill_at=10_000))).words
    assert "The run never had to recover." in words
    assert "without interruption" in words
    assert "Recomputed steps 0 Effective time" in words
    assert "trained again after a restart" not in words


def test_a_held_run_shows_its_last_words_first(small_run: Path, tmp_path: Path):
    folder = shutil.copytree(small_run, tmp_path / "run")
    (folder / "status.json").write_text(json.dumps({"phase": "Held", "message": "oom came back: raise the limit"}))
    report = build_report(folder)
    assert "Held: oom came back: raise the limit" in Page(report).words.replace("Held:  ", "Held: ")
    assert report.index("oom came back") < report.index("What happened")


def test_a_failure_that_was_not_recovered_is_not_passed_over(small_run: Path, tmp_path: Path):
    folder = shutil.copytree(small_run, tmp_path / "run")
    EventLog(folder / "events.jsonl").emit("samite.failure.detected", failure_class="oom", time_unix_s=1_764_600_060.0)
    assert "2 failures, 1 of them recovered." in Page(build_report(folder)).words


def test_a_value_that_is_not_finite_is_marked_at_its_step(small_run: Path, tmp_path: Path):
    folder = shutil.copytree(small_run, tmp_path / "run")
    lines = (folder / "metrics/rank-0.jsonl").read_text().splitlines()
    last = json.loads(lines[-1])
    last["step"] += 1
    last["points"] = [[name, "NaN" if name == "samite.loss" else value, attributes] for name, value, attributes in last["points"]]
    (folder / "metrics/rank-0.jsonl").write_text("\n".join([*lines, json.dumps(last)]) + "\n")
    assert build_report(folder).count('title="not finite at step 21"') == 1


def test_curves_that_are_zero_throughout_are_a_sentence(report: str):
    page = Page(report)
    assert "Zero in every sample: memoryless heads." in page.words
    assert "memoryless" not in page.ids


def test_a_run_started_by_hand_shows_its_training_and_its_restarts(whole_run: Path, tmp_path: Path):
    (tmp_path / "metrics").mkdir()
    shutil.copy(whole_run / "metrics/rank-0.jsonl", tmp_path / "metrics")
    report = build_report(tmp_path)
    words = Page(report).words
    assert "waiting for nodes" not in words
    assert report.count('class="fill productive"') == 3
    assert "No recovery is known: neither events nor a status were found." in words
    EventLog(tmp_path / "events.jsonl").emit("samite.training.started", step_index=1, time_unix_s=1_764_600_020.0)
    assert "The run was restarted 1 time; how long that took was not recorded." in Page(build_report(tmp_path)).words


def test_many_ranks_become_a_band_and_the_page_stays_small(write_run: Callable[..., Path], tmp_path: Path):
    report = build_report(write_run(tmp_path / "run", num_ranks=24))
    assert "highest of 24 ranks" in report
    assert len(report) < 400_000


@pytest.mark.timeout(60)
def test_a_long_run_is_thinned_and_keeps_its_spike(tmp_path: Path):
    (tmp_path / "metrics").mkdir()
    with (tmp_path / "metrics/rank-0.jsonl").open("w") as file:
        for step in range(30_000):
            value = 99.5 if step == 17_777 else 2.0
            file.write(
                f'{{"time":{1e9 + step},"step":{step},"attempt":"a","points":[["samite.loss",{value},{{"samite.loss.kind":"total"}}]]}}\n'
            )
    report = build_report(tmp_path)
    data = json.loads(re.search(r'id="data-loss">(.*?)</script>', report).group(1))
    assert len(data["lines"][0]["x"]) <= 500
    assert "99.5" in data["lines"][0]["text"]
    assert 17_777 in data["lines"][0]["x"]
    assert len(report) < 150_000


def test_the_same_folder_gives_the_same_bytes(whole_run: Path, report: str):
    assert build_report(whole_run, now_unix_s=1_764_700_000.0) == report
