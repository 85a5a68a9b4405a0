"""Data of a training run: sources to corpus (`prepare`), corpus to batches (`build_loader`), and the cursor that makes resume exact.

prepare(folder, sources) ──> corpus folder ──> open_corpus(uri) ──> build_loader(...) ──> list[PackedBatch] for each optimizer step
"""

from samite_workloads.data.corpus import Corpus, open_corpus
from samite_workloads.data.cursor import DataCursor
from samite_workloads.data.layout import CorpusError, Manifest
from samite_workloads.data.loader import Loader, build_loader
from samite_workloads.data.prepare import Prepared, prepare, prepare_quickstart

__all__ = [
    "Corpus",
    "CorpusError",
    "DataCursor",
    "Loader",
    "Manifest",
    "Prepared",
    "build_loader",
    "open_corpus",
    "prepare",
    "prepare_quickstart",
]
