"""What learns: the sharded model and its optimizer, and one forward-backward over the micro-batches of a step."""

from collections.abc import Sequence
from contextlib import nullcontext

import torch
from torch import Tensor

from samite_workloads.batch import IGNORED_LABEL, Modality, PackedBatch
from samite_workloads.model import BalanceReport, MultimodalDecoder, build_model, quantile_balance
from samite_workloads.parallel.clip import clip_coefficient, squared_norms
from samite_workloads.parallel.group import Groups
from samite_workloads.parallel.sharding import ShardedModel, local, shard
from samite_workloads.train.groups import FAMILIES, ParameterGroups, group_parameters
from samite_workloads.train.numeric import Verdict
from samite_workloads.train.optimizer import Optimizer
from samite_workloads.train.plan import TrainPlan


class Learner:
    """Model, optimizer and their tensors on this rank. Every method that computes is collective."""

    def __init__(self, plan: TrainPlan, groups: Groups) -> None:
        self._groups = groups
        self._clip_norm = plan.optimizer.grad_clip_norm
        self._seed = plan.seed
        self.config = plan.model
        module = build_model(self.config, device="meta", dtype=torch.bfloat16 if groups.device.type == "cuda" else torch.float32)
        islands = [parameter for island in module.float32_islands() for parameter in island.parameters(recurse=False)]
        self.sharded: ShardedModel = shard(module, module.layers, device=groups.device, islands=islands)
        module.to_empty(device=groups.device)
        for router in module.router_layers():  # not in checkpoints, so a restore would leave them as memory was
            router.counts_EB1.zero_()
        module.train()
        self.module: MultimodalDecoder = module
        self.parameters: ParameterGroups = group_parameters(module.named_parameters(), self.config, optimizer=plan.optimizer.name)
        self.optimizer = Optimizer(self.parameters, plan.optimizer, groups.device)

    def begin_anew(self) -> None:
        """Initial weights of the run's seed: the same whatever the number of ranks."""
        self.module.init_weights(self._seed)

    def tensors(self) -> dict[str, Tensor]:
        """Everything a checkpoint holds, by name; restore writes into these very tensors."""
        model = {f"model/{name}": tensor for name, tensor in self.module.state_dict().items()}
        return {**model, **{f"optimizer/{name}": tensor for name, tensor in self.optimizer.tensors().items()}}

    def forward_backward(self, batches: Sequence[PackedBatch], *, supervised: Sequence[int], sample: bool = False) -> Tensor:
        """Loss sums of this rank by modality; gradients are in place. The loss is divided by the step's supervised tokens over *all* ranks."""
        divisor = float(sum(supervised))
        loss_sums = torch.zeros(len(Modality), dtype=torch.float32, device=self._groups.device)
        self.optimizer.zero_gradients()
        for index, batch in enumerate(batches):
            self.sharded.last_micro_batch(index == len(batches) - 1)
            with self.module.sampling() if sample and index == 0 else nullcontext():
                output = self.module(batch.to(self._groups.device))
            (output.loss_sum / divisor).backward()
            loss_sums += output.loss_sum_by_modality.detach()
        self.sharded.sum_replicated_gradients(self._groups.world)
        for parameter in self.parameters.parameters:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        return loss_sums

    def judge(self, loss_sums: Tensor, *, supervised: Sequence[int]) -> Verdict:
        """Losses and gradient norms of all ranks in one reduction, and whether the step may be taken."""
        squares = squared_norms(
            [parameter.grad for parameter in self.parameters.parameters if parameter.grad is not None],
            self.parameters.families,
            num_families=len(FAMILIES),
            is_first_rank=self._groups.world.rank() == 0,
            layers=self.parameters.layers,
            num_layers=len(self.parameters.layer_names),
        )
        return Verdict(
            loss_sums,
            squares,
            supervised=supervised,
            max_norm=self._clip_norm,
            group=self._groups.world,
            layer_names=self.parameters.layer_names,
        )

    def update(self, verdict: Verdict, *, learning_rate: float) -> BalanceReport:
        """The optimizer step and the router balancing from the step's loads; neither changes a bit if the verdict refuses the step."""
        clip = clip_coefficient(verdict.total_norm, self._clip_norm)
        self.optimizer.step(learning_rate=learning_rate, clip=clip, accepted=verdict.accepted)
        return quantile_balance(self.module, self._groups.world, apply=verdict.accepted)

    def poison(self) -> None:
        """Write a NaN into one gradient value of this rank; for drills."""
        for parameter in self.parameters.parameters:
            if parameter.grad is not None and local(parameter.grad).numel():
                local(parameter.grad).view(-1)[0] = float("nan")
                return

    def swell(self, factor: float) -> None:
        """Multiply this rank's gradient; for drills. Nothing is touched for 1."""
        for parameter in self.parameters.parameters if factor != 1.0 else ():
            if parameter.grad is not None:
                local(parameter.grad).mul_(factor)


def count_supervised(batches: Sequence[PackedBatch]) -> tuple[int, ...]:
    """Supervised tokens of this rank by modality, counted on the host where the loader made the labels."""
    counts = [0] * len(Modality)
    for batch in batches:
        labelled = batch.labels_T != IGNORED_LABEL
        for modality in Modality:
            counts[modality] += int((labelled & (batch.modality_T == int(modality))).sum())
    return tuple(counts)


def count_padded(batches: Sequence[PackedBatch]) -> int:
    """Padding positions of this rank."""
    return sum(int(batch.is_padding_T.sum()) for batch in batches)
