"""The table itself: one field, one option (`option` says how it is spelled outside)."""
