"""The image in a container runtime: ``make pod``."""
