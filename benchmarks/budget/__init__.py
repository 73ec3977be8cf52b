"""What Python costs: `python -m benchmarks.budget`, its parts, and what waits."""
