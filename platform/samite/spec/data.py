"""What a run trains: the model, the data it sees, and the optimizer."""

from typing import Annotated, Any, Literal

from pydantic import Field

from samite.spec.base import Fraction, LongText, NonNegativeFloat, NonNegativeInt, PositiveFloat, SpecModel

Preset = Literal["tiny", "small"]


class ModelSpec(SpecModel):
    """Which model is trained: a preset, and what is changed in it."""

    preset: Preset = "tiny"
    """Shape of the model. tiny: about 3 million parameters, trains on a laptop's CPU. small: 1.59 billion parameters of which 0.39 billion are
    active for a token, for one GPU. Default tiny: the first run should end in minutes."""
    overrides: dict[str, Any] = {}
    """Fields of the model's configuration that differ from the preset, such as num_layers: 8. `samite explain model.overrides` lists them."""


class MixtureEntry(SpecModel):
    """One source of the data and its share."""

    source: Annotated[str, Field(min_length=1, max_length=120)]
    """Name of a source in the prepared corpus."""
    weight: Annotated[float, Field(gt=0, le=1e9)]
    """Share of the rows that come from this source, relative to the sum of all weights. Unit: none."""


class DataSpec(SpecModel):
    """The data of the run: a prepared corpus and how its sources are mixed."""

    uri: LongText = "builtin:quickstart"
    """Folder of a corpus that `samite data prepare` wrote: a path (relative to the spec's file) or a URI; or builtin:quickstart, which is made on
    first use from what every machine has. Default builtin:quickstart."""
    mixture: Annotated[tuple[MixtureEntry, ...], Field(max_length=64, strict=False)] = ()
    """Sources and their weights. Default: every source of the corpus, weighted by its size."""
    shuffle_seed: NonNegativeInt | None = None
    """Seed of the order of the samples. Left out: the run's seed. Keep it fixed while you compare two runs."""


class OptimizerSpec(SpecModel):
    """The optimizer and the learning-rate schedule, over all stages of the run."""

    name: Literal["Muon", "AdamW"] = "Muon"
    """Muon for matrices with AdamW for the rest, or AdamW for everything. Default Muon, as K3 was trained; its update is scaled to the size of
    AdamW's, so one learning rate serves both."""
    learning_rate: Annotated[float, Field(gt=0, le=10)] = 1e-3
    """Peak learning rate. Unit: per step. Default 0.001, good for tiny; take 0.0003 for small."""
    min_learning_rate_fraction: Fraction = 0.1
    """Learning rate at the end of the schedule, as a share of the peak. Unit: none, 0 to 1. Default 0.1."""
    warmup_fraction: Fraction = 0.01
    """Share of all steps in which the rate rises linearly from zero. Unit: none, 0 to 1. Default 0.01, as K3."""
    schedule: Literal["Cosine", "WSD", "Constant"] = "Cosine"
    """Shape of the curve after the warm-up. Cosine to the minimum; WSD (constant, then a linear decay over decayFraction); or Constant.
    Default Cosine: it ended lower than WSD in K3's own search."""
    decay_fraction: Fraction = 0.2
    """Share of all steps in which WSD decays. Unit: none, 0 to 1. Default 0.2. Only for WSD."""
    weight_decay: Annotated[float, Field(ge=0, le=10)] = 0.1
    """Decoupled weight decay of matrices; norms, biases and gates have none. Unit: per step, times the learning rate. Default 0.1, as K3."""
    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.95
    """Momentum of Muon. Unit: none, 0 to 1. Default 0.95, as Moonlight and K2."""
    betas: Annotated[tuple[Annotated[float, Field(ge=0, lt=1)], Annotated[float, Field(ge=0, lt=1)]], Field(strict=False)] = (0.9, 0.95)
    """Decay of AdamW's first and second moments. Unit: none. Default [0.9, 0.95]."""
    epsilon: PositiveFloat = 1e-8
    """Added to AdamW's denominator. Unit: that of a gradient. Default 1e-8."""
    grad_clip_norm: NonNegativeFloat = 1.0
    """Largest norm of the whole gradient; larger ones are scaled down. Unit: norm. Default 1.0; 0 switches clipping off."""


class RouterSpec(SpecModel):
    """How the load of the experts is kept even."""

    balancing: Literal["Quantile", "Sign", "None"] = "Quantile"
    """Quantile: the bias follows the quantile of the scores, from one histogram per step, as K3. Sign: a fixed step towards the mean load, as
    earlier models. None: nothing is done, for comparison. Default Quantile."""
