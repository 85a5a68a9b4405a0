"""The tokenizer: any text comes back, no text forges a special token, endless words stay cheap (bounded time, bounded pieces)."""

import base64
import itertools
import random
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from samite_workloads.data import open_corpus, prepare
from samite_workloads.data.arguments import parse_source
from samite_workloads.data.documents import Document, MemorySource
from samite_workloads.data.files import MAX_DOCUMENT_CHARACTERS
from samite_workloads.data.tokenizer import PIECE_CHARACTERS, SPECIAL_TOKENS, encode, pieces, special_tokens, train_tokenizer

TOKENIZER = train_tokenizer(["def weave(thread):\n    return [silk for silk in thread]\n" * 50, "日本語と漢字 " * 50], 400)
SPECIAL = special_tokens(TOKENIZER)


def ids(text: str) -> list[int]:
    return [token for piece in encode(TOKENIZER, text) for token in piece]


def decoded(tokens: list[int]) -> str:
    return TOKENIZER.decode(tokens, skip_special_tokens=False)


@settings(deadline=None)
@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_any_text_comes_back_as_it_went_in(text: str):
    assert decoded(ids(text)) == text


@settings(deadline=None)
@given(st.lists(st.sampled_from([*SPECIAL_TOKENS.values(), "<|", "|>", " ", "a"]), max_size=8))
def test_no_text_makes_a_special_token(parts: list[str]):
    text = "".join(parts)
    tokens = ids(text)
    assert min(tokens, default=99) >= len(SPECIAL_TOKENS)
    assert decoded(tokens) == text


@settings(deadline=None)
@given(st.lists(st.sampled_from(["a", "\n", "\n\n", " ", "  x", "ab\ncd", "x\n y", "漢字", "1234", "!?"]), max_size=60), st.integers(4, 40))
def test_pieces_join_to_the_text_and_stay_below_the_cap(parts: list[str], cap: int):
    text = "".join(parts)
    cut = list(pieces(text, cap))
    assert "".join(cut) == text
    assert all(1 <= len(piece) <= cap for piece in cut)


@settings(deadline=None)
@given(st.lists(st.sampled_from(["word", "two words", "x = y", "漢字", "1234", "f(!?)", "\tindented", "'s"]), min_size=1, max_size=40))
def test_cutting_at_clean_line_breaks_does_not_change_the_tokens(lines: list[str]):
    text = "\n".join(lines)
    whole = TOKENIZER.encode(text, add_special_tokens=False).ids
    cut = list(pieces(text, 64))
    if all(piece.endswith("\n") and not following[0].isspace() for piece, following in itertools.pairwise(cut)):
        assert [token for piece in cut for token in TOKENIZER.encode(piece, add_special_tokens=False).ids] == whole


def endless(kind: str, size: int) -> str:
    chance = random.Random(1)
    return {
        "one letter": "a" * size,
        "spaces": " " * size,
        "line breaks": "\n" * size,
        "tabs before a word": "\t" * (size - 1) + "x",
        "CJK without spaces": "".join(chance.choices("漢字仮名交文語国人日本学生", k=4096)) * (size // 4096),
        "base64": base64.b64encode(chance.randbytes(size * 3 // 4)).decode(),
        "punctuation": "!" * size,
        "digits": "7" * size,
        "emoji joined": "👩‍👩‍👧" * (size // 5),
        "combining marks": "e" + "\u0301" * size,
    }[kind]


@pytest.mark.timeout(280)
@pytest.mark.parametrize("kind", ["one letter", "spaces", "CJK without spaces", "base64"])
def test_five_megabytes_without_a_border_are_prepared_in_bounded_time(tmp_path: Path, kind: str):
    text = endless(kind, 5 << 20)
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "endless.txt").write_text("x" + text, encoding="utf-8")
    (tmp_path / "in" / "normal.txt").write_text("a few ordinary words\n" * 100)
    seen = []
    started_s = time.process_time()
    prepare(tmp_path / "corpus", [parse_source(f"text={tmp_path / 'in'}")], vocab_size=320, progress=seen.append)
    assert time.process_time() - started_s < 60
    assert max(progress.tokens for progress in seen) > 0
    corpus = open_corpus(tmp_path / "corpus")
    documents = [
        corpus.splits["text"][split].document(n).tokens_L
        for split in ("train", "held_out")
        for n in range(len(corpus.splits["text"][split]))
    ]
    texts = {corpus.tokenizer.decode(tokens[:-1].tolist(), skip_special_tokens=False) for tokens in documents}
    parts = -(-len("x" + text) // MAX_DOCUMENT_CHARACTERS)
    assert len(documents) == parts + 1
    assert sum(len(part) for part in texts - {"a few ordinary words\n" * 100}) == len(text) + 1


@pytest.mark.parametrize("kind", ["line breaks", "tabs before a word", "punctuation", "digits", "emoji joined", "combining marks"])
def test_other_endless_words_take_time_in_proportion_to_their_length(kind: str):
    def seconds(size: int) -> float:
        text = endless(kind, size)
        started_s = time.process_time()
        tokenizer = train_tokenizer([text[: 1 << 16]], 300)
        count = sum(len(piece) for piece in encode(tokenizer, text))
        assert count > 0
        return time.process_time() - started_s

    seconds(1 << 12)
    short, long = seconds(1 << 18), seconds(1 << 20)
    assert long < 12 * short + 1.0


def test_a_long_text_is_encoded_in_pieces_of_bounded_size():
    text = "line of text\n" * 60_000
    assert max(map(len, pieces(text))) <= PIECE_CHARACTERS
    assert decoded(ids(text)) == text


def test_documents_end_with_the_end_token_and_images_have_their_frame(tmp_path: Path):
    import numpy as np

    from samite_workloads.data.documents import Picture

    picture = Picture(pixels=np.zeros((6, 10, 3), np.uint8))
    prepare(tmp_path / "corpus", [MemorySource([Document(parts=("left", picture, "right"), origin="")], name="mixed")], vocab_size=270)
    corpus = open_corpus(tmp_path / "corpus")
    tokens = corpus.splits["mixed"]["train"].document(0).tokens_L.tolist()
    text = corpus.tokenizer.decode(tokens, skip_special_tokens=False)
    assert text == "left<|media_begin|>image 10x6<|media_content|><|media_pad|><|media_end|>right<|end|>"
    assert tokens[-1] == corpus.special.document_end
