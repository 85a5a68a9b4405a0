# ruff: noqa: INP001 - tests that travel with this folder
"""One small forward and backward for compute-sanitizer: two documents, partly filled chunks, a state in and out."""

from cases import make_inputs, run

from samite_kernels.kda.documents import Documents

if __name__ == "__main__":
    results = run(make_inputs(100, 1), Documents((0, 70, 100)), backend="sm90")
    print({name: float(x.float().norm()) for name, x in results.items()})  # noqa: T201
