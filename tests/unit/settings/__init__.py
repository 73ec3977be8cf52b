"""What flags, variables and YAML become: options, models and their specs."""
