"""After a decode: sampling, draft verification, constraints, log probabilities, and text for events."""
