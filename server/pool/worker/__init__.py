"""Models in worker processes (``isolation``): a crash of the native library ends one process, not the server.

The boundary is above the engine: routes and the pool need facts, a vocabulary, and engines that take requests and
return events::

    the server's process                            the worker process (`child`)
    LoadedModel                                     LoadedModel
      vocab: read from the file without weights       weights, instances, step threads, caches
      grammar: checks grammars, reports errors        grammar: compiles the same constraints again
      IsolatedEngine, IsolatedEmbedder   ◀──────▶     Engine, EmbeddingEngine
      IsolatedReader (media)                          the projector
      WorkerProcess                      ◀──────▶     Worker

- `loaders` chooses between the server's own loader and a process. `messages` defines the messages and the connection.
  Each step sends one message with the events of all slots.
- The worker sends its status (counters, slots) when requests end, at most every 50 ms while it is busy, and every two
  seconds otherwise. The server never waits for a model's status.
- When a process ends, its requests fail with `ModelEnded`. Sessions retry those of which their clients have received
  nothing. The pool loads the model again immediately, then after 1, 2, 4 … 60 seconds (`Scheduler._ended`). The
  watchdog kills a process that is silent or whose load does not advance. The worker itself exits when its steps hang.
- A worker exits when its connection closes, and the system kills it with its parent. It inherits no other file
  descriptors, and has its own session, so that a Ctrl-C reaches only the server. When memory is short, the kernel kills
  a worker before the server.
- The server's process opens no context on a GPU: a worker reads the memory of devices.

ADR 13 has the alternatives, and ADR 15 the models that have a process by default. ``isolation: none`` uses no worker.
"""
