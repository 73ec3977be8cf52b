"""The option table and what reads and writes through it.

`table` holds its rows; the rest knows no single option: what is in `read` reads (`layers` lays the values over each
other), `reference` writes --help, the documentation and the YAML's schema. `unsupported` lists what llama-server has
and Llamapool does not (yet).
"""
