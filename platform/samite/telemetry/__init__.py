"""Signals: the registry of names, events and metrics as JSON lines, and their export over OTLP."""
