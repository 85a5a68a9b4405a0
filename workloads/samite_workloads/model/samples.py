"""Signals of one sampled forward pass: what the trainer turns into metrics and into the decay-underflow rule."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from torch import Tensor, nn

from samite_kernels.kda import DecayCounts
from samite_workloads.model.kda import KdaCore
from samite_workloads.model.layer import DecoderLayer
from samite_workloads.model.router import Router, RouterSample
from samite_workloads.signals.decay import StateSample


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelSamples:
    """By 0-based layer; every value is a tensor on the model's device."""

    decay: Mapping[int, DecayCounts]
    """KDA layers."""
    states: Mapping[int, StateSample]
    """KDA layers: size of the final states, largest A_log."""
    router: Mapping[int, RouterSample]
    """MoE layers."""
    activation: Mapping[int, Tensor] = field(default_factory=dict)
    """All layers: largest magnitude of what the layer gives on."""

    @classmethod
    def take(cls, layers: Iterable[nn.Module]) -> "ModelSamples":
        """Moves the samples out of the layers."""
        decay: dict[int, DecayCounts] = {}
        states: dict[int, StateSample] = {}
        router: dict[int, RouterSample] = {}
        activation: dict[int, Tensor] = {}
        for index, layer in enumerate(layers):
            if isinstance(layer, DecoderLayer) and layer.amax is not None:
                activation[index], layer.amax = layer.amax, None
            for module in layer.modules():
                if isinstance(module, KdaCore) and module.sample is not None:
                    decay[index], module.sample = module.sample, None
                    if module.state_sample is not None:
                        states[index], module.state_sample = module.state_sample, None
                elif isinstance(module, Router) and module.sample is not None:
                    router[index], module.sample = module.sample, None
        return cls(decay=decay, states=states, router=router, activation=activation)
