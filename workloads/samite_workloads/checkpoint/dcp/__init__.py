"""Samite's format behind PyTorch's own `torch.distributed.checkpoint`: any program that calls `dcp.save` and `dcp.load` changes one argument.

dcp.save(state, storage_writer=SamiteStorageWriter("s3://bucket/run", step=100))
dcp.load(state, storage_reader=SamiteStorageReader("s3://bucket/run"))
"""

from samite_workloads.checkpoint.dcp.document import SamiteSavePlanner
from samite_workloads.checkpoint.dcp.reader import SamiteStorageReader
from samite_workloads.checkpoint.dcp.writer import SamiteStorageWriter

__all__ = ["SamiteSavePlanner", "SamiteStorageReader", "SamiteStorageWriter"]
