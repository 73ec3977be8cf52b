"""What stands around the measurements: goals, tables, and going on after a break."""
