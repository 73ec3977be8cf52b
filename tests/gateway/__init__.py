"""Tests of real gateways in front of Llamapool servers. `make gateway` runs them."""
