"""What the table is filled from: flags, environment, YAML, presets, and which models they name."""
