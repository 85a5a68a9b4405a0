"""Users' own data as sources: what is taken, what is left out and counted, what is refused with file and line."""

import json
import os
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from samite.errors import NotFoundError
from samite_workloads.data import CorpusError, files, open_corpus, prepare, records
from samite_workloads.data.arguments import parse_source
from samite_workloads.data.documents import Document, Picture, Skipped
from samite_workloads.data.pictures import UnusableImageError, load_picture, shrunk_size


def read(argument: str, **options: int) -> tuple[list[Document], Skipped]:
    skipped = Skipped()
    return list(parse_source(argument, **options).documents(skipped)), skipped


def write_lines(path: Path, *lines: object) -> Path:
    path.write_text("".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines), encoding="utf-8")
    return path


def save_image(path: Path, mode: str = "RGB", size: tuple[int, int] = (12, 8), color: object = 0) -> Path:
    Image.new(mode, size, color).save(path)
    return path


def test_a_folder_is_read_in_path_order_and_hidden_files_are_ignored(tmp_path: Path):
    for name in ("b.txt", "a/z.md", "a.txt", ".hidden", ".git/config", "a/.x"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(name)
    documents, skipped = read(f"mine={tmp_path}")
    assert [document.parts for document in documents] == [("a/z.md",), ("a.txt",), ("b.txt",)]
    assert documents[0].origin == str(tmp_path / "a" / "z.md")
    assert not skipped.counts


def test_what_is_no_text_is_left_out_by_reason_and_named(tmp_path: Path):
    (tmp_path / "good.txt").write_text("text")
    (tmp_path / "empty.txt").write_text("")
    (tmp_path / "blank.txt").write_text(" \n\t")
    (tmp_path / "binary").write_bytes(b"abc\0def")
    (tmp_path / "latin1.txt").write_bytes("müßig".encode("latin-1"))
    (tmp_path / "cut.txt").write_bytes("日".encode()[:2])
    documents, skipped = read(str(tmp_path))
    assert len(documents) == 1
    assert skipped.counts == {"empty": 2, "binary": 1, "not UTF-8": 2}
    assert f"{tmp_path / 'binary'}: binary" in skipped.examples


def test_line_ends_stay_and_a_byte_order_mark_does_not(tmp_path: Path):
    (tmp_path / "windows.txt").write_bytes(b"\xef\xbb\xbfone\r\ntwo\r\n")
    documents, _ = read(str(tmp_path))
    assert documents[0].parts == ("one\r\ntwo\r\n",)


@pytest.mark.parametrize("size", [0, 1, 99, 100, 101, 199, 200, 201, 1000])
@pytest.mark.parametrize("unit", ["x", "line\n", "é"])
def test_a_long_file_becomes_consecutive_documents_without_loss(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int, unit: str):
    monkeypatch.setattr(files, "MAX_DOCUMENT_CHARACTERS", 100)
    text = ("x" + unit * size)[: size + 1]
    (tmp_path / "long.txt").write_text(text)
    documents, _ = read(str(tmp_path))
    assert "".join(str(document.parts[0]) for document in documents) == text
    assert all(1 <= len(str(document.parts[0])) <= 101 for document in documents)
    assert len({document.origin for document in documents}) == len(documents)


def test_json_lines_hold_texts_captions_and_images_inside_texts(tmp_path: Path):
    save_image(tmp_path / "a.png")
    save_image(tmp_path / "b.png", "L")
    path = write_lines(
        tmp_path / "data.jsonl",
        {"text": "plain", "url": "ignored"},
        "",
        {"image": "a.png", "caption": "an a"},
        {"file_name": "b.png", "text": "a b"},
        {"text": "<image>left <image> right", "images": ["a.png", "b.png"]},
    )
    documents, _ = read(str(path))
    kinds = [["image" if isinstance(part, Picture) else part for part in document.parts] for document in documents]
    assert kinds == [["plain"], ["image", "an a"], ["image", "a b"], ["image", "left ", "image", " right"]]
    assert [document.origin for document in documents] == [f"{path}:{line}" for line in (1, 3, 4, 5)]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("{", "not JSON: Expecting property name"),
        ('"text"', "wanted a JSON object, found str"),
        ({"txt": "x"}, '"text": wanted a string, found no such key (keys: txt)'),
        ({"text": 5}, '"text": wanted a string, found int'),
        ({"image": "missing.png", "caption": "x"}, "missing.png does not exist"),
        ({"image": "not.png", "caption": "x"}, "not.png cannot be decoded"),
        ({"image": "a.png"}, '"text": wanted a string, found no such key'),
        ({"image": 3, "caption": "x"}, "image: wanted a path, found 3"),
        ({"image": "a\0b", "caption": "x"}, "image: wanted a path"),
        ({"text": "no mark", "images": ["a.png"]}, "1 images, but the text has <image> 0 times"),
        ({"text": "x", "images": "a.png"}, '"images": wanted a list of paths, found str'),
        ('{"text": "\\ud800"}', "half of a surrogate pair at character 0"),
        ("[" * 100_000, "nested too deeply"),
    ],
)
def test_a_bad_record_is_refused_with_file_and_line(tmp_path: Path, line: object, words: str):
    save_image(tmp_path / "a.png")
    (tmp_path / "not.png").write_text("no image")
    path = write_lines(tmp_path / "data.jsonl", {"text": "fine"}, line, {"text": "fine"})
    with pytest.raises(CorpusError) as caught:
        read(str(path))
    assert f"{path}:2: " in str(caught.value)
    assert words in str(caught.value)


def test_all_bad_records_are_said_at_once_up_to_ten(tmp_path: Path):
    path = write_lines(tmp_path / "data.jsonl", *[{"text": "fine"}, {"bad": 1}] * 15)
    with pytest.raises(CorpusError) as caught:
        read(str(path))
    assert [line.split(": ")[0] for line in str(caught.value).splitlines()] == [f"{path}:{2 * n}" for n in range(1, 11)]


def test_bytes_that_are_not_utf8_are_refused_with_their_place(tmp_path: Path):
    path = tmp_path / "data.jsonl"
    path.write_bytes(b'{"text": "ok"}\n{"text": "\xff"}\n')
    with pytest.raises(CorpusError, match=r"data\.jsonl:2: not UTF-8 at byte 10"):
        read(str(path))


@pytest.mark.parametrize("last", ["\n", ""])
def test_an_endless_line_is_left_out_and_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, last: str):
    monkeypatch.setattr(records, "MAX_LINE_BYTES", 1000)
    path = tmp_path / "data.jsonl"
    path.write_text(json.dumps({"text": "before"}) + "\n" + json.dumps({"text": "a" * 5000}) + "\n" + json.dumps({"text": "after"}) + last)
    documents, skipped = read(str(path))
    assert [document.parts[0] for document in documents] == ["before", "after"]
    assert skipped.examples == [f"{path}:2: line longer than 0 MiB"]


def test_a_folder_with_a_caption_file_is_an_image_source(tmp_path: Path):
    save_image(tmp_path / "x.png")
    write_lines(tmp_path / "metadata.jsonl", {"file_name": "x.png", "text": "an x"})
    documents, _ = read(str(tmp_path))
    assert documents[0].parts[1] == "an x"


def test_images_beside_text_files_take_them_as_captions(tmp_path: Path):
    for name in ("b", "a", "lonely"):
        save_image(tmp_path / f"{name}.png")
    (tmp_path / "a.txt").write_text(" a caption\n")
    (tmp_path / "b.txt").write_text("b caption")
    documents, skipped = read(str(tmp_path))
    assert [document.parts[1] for document in documents] == ["a caption", "b caption"]
    assert skipped.counts == {"image without a caption": 1}


@pytest.mark.parametrize(
    ("mode", "color", "channels", "expected"),
    [
        ("L", 77, 1, [77]),
        ("1", 1, 1, [255]),
        ("RGB", (1, 2, 3), 3, [1, 2, 3]),
        ("RGBA", (10, 20, 30, 0), 3, [255, 255, 255]),
        ("RGBA", (10, 20, 30, 255), 3, [10, 20, 30]),
        ("LA", (9, 0), 3, [255, 255, 255]),
        ("P", 0, 3, [0, 0, 0]),
        ("CMYK", (0, 0, 0, 0), 3, [255, 255, 255]),
    ],
)
def test_every_pixel_mode_becomes_grey_or_rgb(tmp_path: Path, mode: str, color: object, channels: int, expected: list[int]):
    path = save_image(tmp_path / ("x.tif" if mode == "CMYK" else "x.png"), mode, color=color)
    pixels = load_picture(path).pixels
    assert pixels.shape == (8, 12, channels)
    assert pixels[4, 4].tolist() == expected


def test_more_than_eight_bits_are_refused_rather_than_clipped(tmp_path: Path):
    with pytest.raises(UnusableImageError, match="more than 8 bits"):
        load_picture(save_image(tmp_path / "x.png", "I;16"))


def test_large_images_are_scaled_down_and_small_ones_left_alone(tmp_path: Path):
    path = save_image(tmp_path / "x.png", size=(400, 100))
    assert load_picture(path).pixels.shape == (100, 400, 3)
    assert load_picture(path, 10_000).pixels.shape == (50, 200, 3)


@pytest.mark.parametrize(("size", "limit"), [((10_000, 1), 100), ((1, 1), 1), ((50_000, 40_000), 200_704), ((3585, 10), 10**9)])
def test_the_scaled_size_keeps_to_every_limit(size: tuple[int, int], limit: int):
    width, height = shrunk_size(*size, limit)
    assert width >= 1
    assert height >= 1
    assert width * height <= max(limit, width, height)
    assert max(width, height) <= 3584


def test_a_truncated_image_is_refused_by_name(tmp_path: Path):
    path = tmp_path / "x.png"
    Image.fromarray(np.random.default_rng(0).integers(0, 255, (64, 64, 3), dtype=np.uint8)).save(path)
    path.write_bytes(path.read_bytes()[:500])
    with pytest.raises(UnusableImageError, match=r"x\.png cannot be decoded"):
        load_picture(path)


def test_a_decompression_bomb_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 100)
    with pytest.raises(UnusableImageError, match="too many pixels"):
        load_picture(save_image(tmp_path / "x.png", size=(15, 10)))


@pytest.mark.parametrize(
    ("argument", "name"),
    [("stdlib", "text"), ("digits", "digits"), ("code=stdlib", "code"), ("{}/My Corpus!", "My-Corpus"), ("web={}/My Corpus!", "web")],
)
def test_sources_are_named_by_the_user_or_after_their_place(tmp_path: Path, argument: str, name: str):
    (tmp_path / "My Corpus!").mkdir()
    assert parse_source(argument.format(tmp_path)).name == name


def test_a_path_with_an_equals_sign_is_a_path(tmp_path: Path):
    (tmp_path / "a=b").mkdir()
    assert parse_source(str(tmp_path / "a=b")).name == "a-b"


def test_a_path_that_is_not_there_is_refused_by_name(tmp_path: Path):
    with pytest.raises(NotFoundError, match=r"nowhere does not exist; wanted stdlib, digits, PATH or NAME=PATH"):
        parse_source(f"x={tmp_path}/nowhere")


def test_brackets_in_paths_come_out_as_they_are(tmp_path: Path):
    folder = tmp_path / "[v1]" / "[/red]"
    folder.mkdir(parents=True)
    (folder / "x.txt").write_text("x")
    documents, _ = read(str(folder))
    assert "[v1]/[/red]/x.txt" in documents[0].origin


@pytest.mark.parametrize("change", ["content", "name", "image"])
def test_a_changed_input_is_noticed(tmp_path: Path, change: str):
    text, image = tmp_path / "t", tmp_path / "i"
    text.mkdir()
    image.mkdir()
    (text / "a.txt").write_text("a")
    save_image(image / "x.png")
    write_lines(image / "captions.jsonl", {"image": "x.png", "caption": "x"})
    before = [parse_source(str(place)).fingerprint() for place in (text, image)]
    if change == "content":
        (text / "a.txt").write_text("b")
    elif change == "name":
        (text / "a.txt").rename(text / "b.txt")
    else:
        save_image(image / "x.png", color=(9, 9, 9))
    after = [parse_source(str(place)).fingerprint() for place in (text, image)]
    assert before != after


def test_a_touched_input_is_not_a_changed_one(tmp_path: Path):
    (tmp_path / "a.txt").write_text("a")
    before = parse_source(str(tmp_path)).fingerprint()
    (tmp_path / "a.txt").touch()
    assert parse_source(str(tmp_path)).fingerprint() == before


def test_several_kinds_of_sources_make_one_corpus(tmp_path: Path):
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts" / "a.txt").write_text("text " * 50)
    (tmp_path / "images").mkdir()
    save_image(tmp_path / "images" / "x.png", size=(30, 20))
    write_lines(tmp_path / "images" / "captions.jsonl", *[{"image": "x.png", "caption": f"caption {n}"} for n in range(5)])
    sources = [parse_source(str(tmp_path / name)) for name in ("texts", "images")]
    prepare(tmp_path / "corpus", sources, vocab_size=270, held_out_fraction=0)
    corpus = open_corpus(tmp_path / "corpus")
    assert corpus.sources == ("images", "texts")
    pixels = corpus.splits["images"]["train"].document(3).pictures[0]
    assert pixels.shape == (20, 30, 3)


def test_file_names_that_are_not_unicode_do_no_harm(tmp_path: Path):
    folder = tmp_path / "texts"
    folder.mkdir()
    for name, content in ((b"\xff.txt", b"fine"), (b"\xfe.bin", b"\0"), (b"plain.txt", b"fine as well")):
        (folder / os.fsdecode(name)).write_bytes(content)
    prepared = prepare(tmp_path / "corpus", [parse_source(f"text={folder}")], vocab_size=262, held_out_fraction=0)
    opened = open_corpus(tmp_path / "corpus").manifest
    assert opened == prepared.manifest
    assert opened.sources["text"].skipped == {"binary": 1}
