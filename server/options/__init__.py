"""The option table, and what reads and writes through it.

- `option`: a row of the table; `values`: types of values; `server` and `model`: its rows; `table`: all of them.
- `flags`, `sources`, `presets`: read the command line, environment, YAML, presets and folders, and merge them.
- `specs`: converts settings into the parameters of engine, pool and library.
- `reference`: writes --help, docs/configuration.md and the JSON Schema.
"""
