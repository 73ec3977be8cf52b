"""Fields that constrain the output, and reasoning budgets, in all dialects."""
