"""The model: K3's decoder with its vision tower, routing and balancing, in plain torch over `samite_kernels`.

decoder > layer > kda | mla | moe > router | experts > linear | norm | situ        vision        loss        balancing
init and state_dict know every parameter by its name in the released checkpoint.
"""

from samite_workloads.config import ModelConfig
from samite_workloads.model.balancing import BalanceReport, quantile_balance
from samite_workloads.model.decoder import ModelOutput, MultimodalDecoder, build_model
from samite_workloads.model.samples import ModelSamples

__all__ = [
    "BalanceReport",
    "ModelConfig",
    "ModelOutput",
    "ModelSamples",
    "MultimodalDecoder",
    "build_model",
    "quantile_balance",
]
