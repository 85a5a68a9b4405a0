"""The quickstart's own data: real, offline, learnable, bounded."""

from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest

from samite_workloads.data import Corpus, CorpusError, Prepared, build_loader, open_corpus, prepare_quickstart
from samite_workloads.data.digits import Digits
from samite_workloads.data.documents import Picture, Skipped
from samite_workloads.data.stdlib import StandardLibrary


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Prepared:
    return prepare_quickstart(tmp_path_factory.mktemp("quickstart") / "corpus", 1024, max_bytes=1 << 20)


@pytest.fixture(scope="module")
def quickstart(prepared: Prepared) -> Corpus:
    return open_corpus(prepared.folder)


def test_the_corpus_has_text_and_captioned_images(prepared: Prepared):
    text, digits = prepared.manifest.sources["text"], prepared.manifest.sources["digits"]
    assert text.splits["train"].num_tokens > 200_000
    assert text.splits["train"].num_documents > 20
    assert digits.splits["train"].num_images + digits.splits["held_out"].num_images == 1797
    assert prepared.manifest.vocab_size == 1024


def test_the_text_keeps_to_its_bound_and_its_order(tmp_path: Path):
    for bound in (50_000, 400_000):
        documents = list(StandardLibrary(max_bytes=bound).documents(Skipped()))
        assert sum(len(document.parts[0].encode()) for document in documents) <= bound
        origins = [document.origin for document in documents]
        assert origins == sorted(origins)
        assert len(set(origins)) == len(origins)


def test_the_text_holds_sources_documentation_and_licences():
    origins = [document.origin for document in StandardLibrary(max_bytes=4 << 20).documents(Skipped())]
    assert any(origin.endswith(".py") for origin in origins)
    assert any(origin.startswith("pydoc/") for origin in origins)
    assert any("licen" in origin.lower() for origin in origins)
    assert not any("site-packages" in origin or "/test/" in origin for origin in origins)


def test_a_bound_that_holds_nothing_is_refused():
    with pytest.raises(CorpusError, match="no text found below"):
        list(StandardLibrary(max_bytes=0).documents(Skipped()))


def test_captions_say_what_the_image_shows():
    words = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
    by_digit = defaultdict(list)
    for document in Digits().documents(Skipped()):
        picture, text = document.parts
        assert isinstance(picture, Picture)
        named = [
            number
            for number, word in enumerate(words)
            if word in str(text).replace(",", " ").replace(":", " ").split() or str(number) in str(text)
        ]
        assert len(named) == 1
        by_digit[named[0]].append(picture.pixels.mean(axis=2))
    assert {digit: len(images) for digit, images in by_digit.items()} == {
        0: 178,
        1: 182,
        2: 177,
        3: 183,
        4: 181,
        5: 182,
        6: 181,
        7: 179,
        8: 174,
        9: 180,
    }
    means = np.stack([np.mean(by_digit[digit], axis=0).ravel() for digit in range(10)])
    right = sum(
        int(np.argmin(((means - image.ravel()) ** 2).sum(axis=1)) == digit) for digit, images in by_digit.items() for image in images
    )
    assert right / 1797 > 0.85  # the nearest mean image already tells the digit: captions can be learned from pixels


def test_both_strokes_and_both_widths_occur_often():
    captions = [str(document.parts[1]) for document in Digits().documents(Skipped())]
    for one, other in (("bold", "light"), ("wide", "narrow")):
        first, second = (sum(word in caption for caption in captions) for word in (one, other))
        assert 0.2 < first / (first + second) < 0.8
    assert len(set(captions)) > 100


def test_digits_come_in_every_size_that_their_scans_divide():
    picture = next(Digits(pixels=56).documents(Skipped())).parts[0]
    assert isinstance(picture, Picture)
    assert picture.pixels.shape == (56, 56, 1)
    with pytest.raises(CorpusError, match="multiple of 8"):
        Digits(pixels=20)


@pytest.mark.parametrize("context_length", [256, 1024])
def test_the_tiny_model_gets_text_and_images_from_it(quickstart: Corpus, context_length: int):
    mixture = {"text": 0.8, "digits": 0.2}
    with build_loader(quickstart, mixture, context_length, rows_per_step=8, rank=0, world=2, seed=0, micro_rows=2, patch_size=4) as loader:
        batches = [batch for _ in range(10) for batch in next(loader)]
        tokens = {name: source.tokens for name, source in loader.cursor().sources.items()}
    assert all(batch.num_tokens == 2 * context_length for batch in batches)
    assert sum(batch.image_grids_I2.shape[0] for batch in batches) > 20
    assert all(grid == [4, 4] for batch in batches for grid in batch.image_grids_I2.tolist())
    assert tokens["digits"] / sum(tokens.values()) == pytest.approx(0.2, abs=0.03)
    for modality in (0, 1):
        assert sum(int(((batch.labels_T >= 0) & (batch.modality_T == modality)).sum()) for batch in batches) > 100


def test_the_built_in_uri_prepares_once_and_then_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, prepared: Prepared):
    import shutil

    monkeypatch.setenv("SAMITE_HOME", str(tmp_path))
    shutil.copytree(prepared.folder, tmp_path / "data" / "quickstart")
    assert open_corpus("builtin:quickstart").digest == prepared.manifest.digest
