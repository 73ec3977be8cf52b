"""The option table, and what reads and writes through it.

- `option`: a row of the table; `values`: types of values; `server` and `model`: its rows; `table`: all of them.
- `sources`: the base of the sources for pydantic-settings, our variables and the YAML; `flags`: llama-server's flags
  and variables; `presets`: presets, folders and the cache of models.
- `specs`: converts settings into the parameters of engine, pool and library.
- `reference`: writes --help, docs/configuration.md and the JSON Schema.
"""
