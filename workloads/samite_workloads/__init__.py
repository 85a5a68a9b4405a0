"""What runs on the workers: model, data, parallelism, trainer and checkpoint input and output."""
