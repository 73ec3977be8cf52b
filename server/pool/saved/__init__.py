"""States of slots as files: those that clients save, and the disk cache of a model."""
