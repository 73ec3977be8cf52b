"""Agent programs and client libraries, each in a complete agent loop against a real server with a scripted model.

``make clients`` runs them (`__main__`). ``python -m server`` starts the server; only the model, which
implements the engine's protocol, is a script (`scripted_model`). It writes each reply in the format of a model family.
"""
