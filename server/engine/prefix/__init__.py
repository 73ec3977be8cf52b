"""Where the beginning of a prompt comes from: `find` is the door, the others are how it compares. Pure.

================  ======================================================================================
``find``          which slot a sequence gets, and from where its prompt's beginning comes
``match``         which cells can be reused, where they are or moved
``index``         how a kept state that fits a prompt is found among thousands, by ``hashes`` of blocks
``origin``        where a beginning came from and why the rest is computed anew, for who looks
``blocks``        which blocks of prompts are held, as changes, for routers in front
================  ======================================================================================
"""
