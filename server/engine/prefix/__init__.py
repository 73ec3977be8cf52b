"""Where the beginning of a prompt comes from: `find` is the door, the others are how it compares. Pure.

================  ======================================================================================
``find``          which slot a sequence gets, from where its prompt's beginning comes, and why the rest is computed
``hashes``        what two texts begin with, and how a kept state that fits a prompt is found among thousands
``blocks``        which blocks of prompts are held, as changes, for routers in front
================  ======================================================================================
"""
