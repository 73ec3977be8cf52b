"""Tests of the settings: what flags, environment variables and YAML files become."""
