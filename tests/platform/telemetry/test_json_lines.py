"""JSON lines survive torn lines, wrong bytes, rotation and many writers; nothing that is not JSON is ever written."""

import json
import multiprocessing
import os
from pathlib import Path

import pytest

from samite.telemetry import jsonlines

GOOD = b'{"n":1}\n'


def numbers(path: Path) -> list[int]:
    return [document["n"] for document in jsonlines.read(path).documents]


@pytest.mark.parametrize(
    ("damage", "damaged"),
    [
        (b'{"n":', 1),
        (b"\0\0\0\0", 0),
        (b"\0\0\0\n", 0),
        (b"\x80\xff\n", 1),
        (b'{"n":1,"s":"\xf0\x9f\n', 1),
        (b"[1,2]\n", 1),
        (b"17\n", 1),
        (b"\n\n \r\n", 0),
        (b"[" * 100_000 + b"\n", 1),
        (b"\x1b[31mred\x1b[0m\r\n", 1),
        (b"x" * 5_000_000 + b"\n", 1),
    ],
    ids=["torn", "NUL tail", "NUL line", "not UTF-8", "cut emoji", "list", "number", "blank", "deep", "ANSI", "5 MB"],
)
def test_damage_costs_its_own_line_only(tmp_path: Path, damage: bytes, damaged: int):
    path = tmp_path / "a.jsonl"
    path.write_bytes(GOOD + damage)
    lines = jsonlines.read(path)
    assert (len(lines.documents), lines.damaged) == (1, damaged)


def test_nul_bytes_before_a_line_are_ignored(tmp_path: Path):
    (path := tmp_path / "a.jsonl").write_bytes(GOOD + b"\0" * 4096 + b'{"n":2}\n')
    assert numbers(path) == [1, 2]


def test_bad_bytes_inside_a_text_become_replacement_characters(tmp_path: Path):
    (path := tmp_path / "a.jsonl").write_bytes(b'{"s":"a\x80b"}\n')
    assert jsonlines.read(path).documents == [{"s": "a\ufffdb"}]


def test_a_whole_line_without_its_newline_counts(tmp_path: Path):
    (path := tmp_path / "a.jsonl").write_bytes(GOOD + b'{"n":2}')
    assert numbers(path) == [1, 2]


def test_an_endless_line_is_skipped_without_keeping_it(tmp_path: Path):
    path = tmp_path / "a.jsonl"
    with path.open("wb") as file:
        file.write(GOOD)
        for _ in range(40):
            file.write(b"x" * 1_000_000)
        file.write(b'\n{"n":2}\n')
    lines = jsonlines.read(path)
    assert ([d["n"] for d in lines.documents], lines.damaged) == ([1, 2], 1)


def test_a_missing_file_and_a_folder_are_no_error(tmp_path: Path):
    assert jsonlines.read(tmp_path / "none.jsonl").missing
    assert jsonlines.read(tmp_path).missing


def test_a_line_after_a_torn_one_starts_on_its_own(tmp_path: Path):
    (path := tmp_path / "a.jsonl").write_bytes(GOOD + b'{"n":5')
    jsonlines.append_line(path, {"n": 2})
    assert numbers(path) == [1, 2]


def test_what_is_written_is_ascii_and_strict_json(tmp_path: Path):
    path = tmp_path / "deep" / "a.jsonl"
    document = {"text": "naïve 🧵 \ud800 \n", "nan": float("nan"), "list": [float("inf"), -float("inf")], "ok": 1.5}
    jsonlines.append_line(path, document)
    raw = path.read_bytes()
    assert raw.isascii()
    assert raw.count(b"\n") == 1

    def refuse(token: str) -> None:
        raise AssertionError(token)

    back = json.loads(raw, parse_constant=refuse)
    assert back["text"] == document["text"]
    assert (back["nan"], back["list"]) == ("NaN", ["Infinity", "-Infinity"])
    assert jsonlines.number(back["list"][1]) == -float("inf")


def write_many(path: Path, writer: int) -> None:
    for index in range(200):
        jsonlines.append_line(path, {"n": writer * 1000 + index, "pad": "é" * (index * 7 % 3000)})


@pytest.mark.timeout(60)
def test_lines_of_several_processes_never_mix(tmp_path: Path):
    path = tmp_path / "a.jsonl"
    context = multiprocessing.get_context("fork")
    writers = [context.Process(target=write_many, args=(path, writer), daemon=True) for writer in range(4)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join(50)
    lines = jsonlines.read(path)
    assert lines.damaged == 0
    assert sorted(d["n"] for d in lines.documents) == sorted(w * 1000 + i for w in range(4) for i in range(200))


def test_a_follower_waits_for_the_end_of_a_line(tmp_path: Path):
    (path := tmp_path / "a.jsonl").write_bytes(b"")
    follower = jsonlines.Follower(path)
    with path.open("ab", buffering=0) as file:
        text = '{"n":1,"s":"🧵"}\n'.encode()
        for cut in range(len(text)):
            file.write(text[cut : cut + 1])
            got = list(follower.poll())
            assert bool(got) == (cut == len(text) - 1)


def test_a_follower_sees_a_file_that_appears_later(tmp_path: Path):
    follower = jsonlines.Follower(tmp_path / "a.jsonl")
    assert list(follower.poll()) == []
    jsonlines.append_line(tmp_path / "a.jsonl", {"n": 1})
    assert [d["n"] for d in follower.poll()] == [1]


def test_a_follower_reads_the_rest_of_a_rotated_file_then_the_new_one(tmp_path: Path):
    path = tmp_path / "a.jsonl"
    jsonlines.append_line(path, {"n": 1})
    follower = jsonlines.Follower(path)
    assert [d["n"] for d in follower.poll()] == [1]
    jsonlines.append_line(path, {"n": 2})
    path.rename(tmp_path / "a.jsonl.1")
    jsonlines.append_line(path, {"n": 3})
    assert [d["n"] for d in follower.poll()] == [2, 3]
    assert list(follower.poll()) == []


def test_a_follower_starts_again_when_the_file_was_truncated(tmp_path: Path):
    path = tmp_path / "a.jsonl"
    for n in range(5):
        jsonlines.append_line(path, {"n": n})
    follower = jsonlines.Follower(path)
    assert len(list(follower.poll())) == 5
    os.truncate(path, 0)
    jsonlines.append_line(path, {"n": 9})
    assert [d["n"] for d in follower.poll()] == [9]


def test_a_follower_from_the_end_skips_what_is_old(tmp_path: Path):
    path = tmp_path / "a.jsonl"
    jsonlines.append_line(path, {"n": 1})
    follower = jsonlines.Follower(path, from_end=True)
    jsonlines.append_line(path, {"n": 2})
    assert [d["n"] for d in follower.poll()] == [2]
