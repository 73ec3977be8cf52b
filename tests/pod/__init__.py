"""Tests of the container image in a container runtime: ``make pod``."""
