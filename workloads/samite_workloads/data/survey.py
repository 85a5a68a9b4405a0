"""What a corpus would look like to a run: document lengths, and what rows of a given length cut, keep, drop and pad.

`samite data stats` prints it. The packing figures come from the plan that training uses, laid out over one epoch of the largest source.
"""

from typing import TYPE_CHECKING, Any

import numpy as np

from samite_workloads.data.cursor import DataCursor
from samite_workloads.data.mixture import whole_weights
from samite_workloads.data.packing import RowPlan, SourceShape

if TYPE_CHECKING:
    from samite_workloads.data.corpus import Corpus

MAX_ROWS = 20_000


def survey(corpus: "Corpus", *, context_length: int, patch_size: int, mixture: Any = ()) -> dict[str, Any]:
    """JSON-able figures for the training split: for each source lengths and drops, for the rows padding and the share of each source."""
    shapes = {}
    sources = {}
    for name in corpus.sources:
        lengths_N, has_images_N = corpus.splits[name]["train"].lengths(patch_size)
        shapes[name] = SourceShape(lengths_N=lengths_N, whole_N=has_images_N)
        middle, high = np.quantile(lengths_N, [0.5, 0.9])
        sources[name] = {
            "documents": len(lengths_N),
            "tokens": int(lengths_N.sum()),
            "median_length": int(middle),
            "p90_length": int(high),
            "longest": int(lengths_N.max()),
            "with_images": int(has_images_N.sum()),
            "longer_than_context": int((lengths_N > context_length).sum()),
            "dropped_at_this_context": int((has_images_N & (lengths_N > context_length)).sum()),
        }
    weights = whole_weights(mixture, corpus.sources)
    return {
        "digest": corpus.digest,
        "context_length": context_length,
        "patch_size": patch_size,
        "sources": sources,
        "rows": _pack({name: shapes[name] for name in weights}, weights, context_length, corpus.digest),
    }


def _pack(shapes: dict[str, SourceShape], weights: dict[str, int], context_length: int, digest: str) -> dict[str, Any]:
    plan = RowPlan(shapes, weights, context_length, DataCursor(corpus=digest, seed=0))
    epoch_tokens = max(int(shape.lengths_N.sum()) for shape in shapes.values())
    num_rows = max(1, min(MAX_ROWS, epoch_tokens // context_length))
    num_pieces = sum(len(plan.next_row().pieces) for _ in range(num_rows))
    cursor = plan.cursor()
    laid_out = sum(source.tokens for source in cursor.sources.values())
    return {
        "laid_out": num_rows,
        "pieces_per_row": num_pieces / num_rows,
        "padding_fraction": cursor.padding_tokens / (num_rows * context_length),
        "token_share": {name: source.tokens / laid_out for name, source in cursor.sources.items()},
        "epochs": {name: source.next_place / len(shapes[name].lengths_N) for name, source in cursor.sources.items()},
    }
