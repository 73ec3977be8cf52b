"""Pictures and sounds before a model sees them: where they come from, and what they are once decoded."""
