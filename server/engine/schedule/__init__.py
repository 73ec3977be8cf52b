"""Who gets a slot, and who decodes which tokens in the next step. Pure: no threads, clock or native calls.

====================  ==================================================================================
``scheduler``         an instance's door: its queue, its slots, and which tokens the next step decodes
``queue``             who waits, in an instance or for one: priorities, shares between clients, and who may join
``prefill``           which prompt gets a step's tokens: one number, which age makes smaller; and how many a step has
``evaluations``       how often a step evaluates the graph, and which slots need fewer evaluations
``cell_room``         who goes first where unified cells are short
====================  ==================================================================================
"""
