"""A small corpus with everything that is awkward in it: one-token documents, long ones, images of several sizes, one that fits nowhere."""

import random

import numpy as np
import pytest

from samite_workloads.data import Corpus, open_corpus, prepare
from samite_workloads.data.documents import Document, MemorySource, Picture


def texts(count: int, seed: int = 0) -> list[Document]:
    chance = random.Random(seed)
    words = ["silk", "thread", "loom", "weave", "warp", "weft", "six", "gold", "ünïcode", "日本語", "\n", "  "]
    documents = []
    for number in range(count):
        length = chance.choice([0, 1, 2, 5, 20, 60, 300])
        text = f"{number} " + " ".join(chance.choice(words) for _ in range(length)) if length else ""
        documents.append(Document(parts=(text,) if text else (), origin=f"text:{number}"))
    return documents


def pictures(count: int, seed: int = 0) -> list[Document]:
    chance = np.random.default_rng(seed)
    sizes = [(8, 8), (16, 8), (8, 24), (9, 17), (1, 1)]
    documents = []
    for number in range(count):
        height, width = sizes[number % len(sizes)] if number else (80, 80)
        pixels = chance.integers(0, 256, (height, width, 1 + 2 * (number % 2)), dtype=np.uint8)
        around = ("see: ",) if number % 3 == 0 else ()
        documents.append(Document(parts=(*around, Picture(pixels=pixels), f"a picture, number {number}"), origin=f"image:{number}"))
    return documents


@pytest.fixture(scope="session")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    folder = tmp_path_factory.mktemp("corpora") / "small"
    sources = [MemorySource(texts(60), name="text"), MemorySource(pictures(40), name="pictures")]
    prepare(folder, sources, vocab_size=300, held_out_fraction=0.1)
    return open_corpus(folder)
