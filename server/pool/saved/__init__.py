"""States of slots as files: those that clients save, and a model's own folder of prompt states."""
