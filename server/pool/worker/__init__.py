"""Models in processes of their own (``isolation``): what a model's code does ends one process, not the server.

What the routes, the session and the pool ask of a model is small: facts, a vocabulary, engines that take requests and
give events. So the border runs there, above the engine, and both sides are made of what there is already::

    the server's process                          the model's process (`child`)
    LoadedModel                                   LoadedModel
      vocab: of the file, without weights           weights, instances, step threads, caches
      grammar: to check and to say what is wrong    grammar: the same constraints, made anew
      IsolatedEngine, IsolatedEmbedder   ◀──────▶   Engine, EmbeddingEngine
      IsolatedReader (media)                        the projector
                    `core.Core`  ◀── a socket ──▶  `child.serve`

- **One message per step each way.** What all slots of a step have said is one message up; requests and cancellations
  go down as they come. A message is a frame on a pair of sockets (`channel`); long ones go in parts, so that a slot's
  state of a gigabyte holds up no step.
- **What crosses.** Down (`crossing`): pickles, since a child trusts its parent; a vocabulary, a compiled grammar, a
  medium or a switch crosses as what it is there, a picture that was decoded before without its pixels, which are
  asked for where there are no embeddings of it (`lent`). Up (`answers`): tuples of plain values for events, and for
  all else pickles in which nothing but our own plain dataclasses is known, since a model's file may have taken a
  process over.
- **What the other side does now** (counters, slots, whether steps go on) is told with what ends, at most every 50 ms
  while there is work, and else every two seconds. So nothing in the server waits for a model to answer a look.
- **Death** (`core`): a process ends with its socket; what was asked of it and has said nothing yet is asked once more,
  all else ends with an error. It is started again at once, then after 1, 2, 4 … 60 seconds. A process whose steps or
  whose load do not go on is killed by the watchdog, and then it is the same. Who asks meanwhile waits, as for a load.
- **No orphan.** A child ends with its socket's other end, and is killed by the system when its parent ends. It has no
  other descriptors, is in a session of its own (a Ctrl-C is for the server), and is the first that a system without
  memory takes.

- **Devices.** The server's process opens no context on a GPU: what reads the memory of devices runs in a process.

ADR 13 says what else was thought of, ADR 15 which models have a process by default. ``isolation: none`` passes through
nothing of this.
"""
