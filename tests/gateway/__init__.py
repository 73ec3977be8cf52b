"""Tests of real gateways with Llamapool servers as backends. `make gateway` runs them."""
