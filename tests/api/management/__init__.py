"""Tests of the endpoints for operators: models, slots, health, metrics, web UI, reload and shutdown."""
