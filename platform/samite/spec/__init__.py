"""The TrainingRun document: models, loading with line numbers, explanation and schema."""
