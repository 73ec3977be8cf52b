"""The scheduler: which request gets a slot, and which tokens each step decodes. Pure: no threads, clock or native
calls.

====================  ==================================================================================
``scheduler``         places requests into slots and plans the batch of the next step
``queue``             waiting requests of an instance and of the model: priority, fair share, admission
``prefill``           the order of prefills, and the token budget of a step
``evaluations``       how often a step evaluates the graph, and which slots need fewer evaluations
``kv_budget``         bounded bypass when unified KV cells are short
====================  ==================================================================================
"""
