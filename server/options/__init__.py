"""The option table and what reads and writes through it.

`server`, `model` and `sampling` hold its rows; the rest knows no single option: `flags`, `environment`, `yaml_file`
and `presets` read, `layers` lays the values over each other, `reference` writes --help, the documentation and the
YAML's schema. `unsupported` lists what llama-server has and Llamapool does not (yet).
"""
