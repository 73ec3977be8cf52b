"""Tests of the inference endpoints: one file for each API, and for each feature that several APIs share."""
