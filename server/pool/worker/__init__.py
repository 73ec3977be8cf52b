"""Models in processes of their own (``isolation``): a crash of the native library ends one process, not the server.

The boundary lies above the engine: routes and the pool need facts, a vocabulary, and engines that take requests and
return events::

    the server's process                            the worker process (`child`)
    LoadedModel                                     LoadedModel
      vocab: of the file, without weights             weights, instances, step threads, caches
      grammar: checks grammars, reports errors        grammar: compiles the same constraints again
      IsolatedEngine, IsolatedEmbedder   ◀──────▶     Engine, EmbeddingEngine
      IsolatedReader (media)                          the projector
      WorkerProcess                      ◀──────▶     Worker

- `loaders` chooses between the server's own loader and a process. `messages` defines what is sent and how. Each step
  sends one message with the events of all slots.
- The worker sends its status (counters, slots) when requests end, at most every 50 ms while it is busy,
  and every two seconds otherwise. Nothing in the server waits for a model to report its state.
- When a process ends, its requests end with `ModelEnded`; sessions retry those of which their clients have seen
  nothing. The pool loads the model again at once, then after 1, 2, 4 … 60 seconds (`Scheduler._ended`). The watchdog
  kills a process that is silent or whose load does not advance; the worker itself ends when its steps do not.
- A worker exits when its connection closes, and the system kills it with its parent. It inherits no other file
  descriptors and has its own session: a Ctrl-C is for the server. It is the first to go when memory is short.
- The server's process opens no context on a GPU: the memory of devices is read in a worker.

ADR 13 has the alternatives, ADR 15 says which models have a process by default. ``isolation: none`` uses none of this.
"""
