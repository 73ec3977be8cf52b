"""Work on what strangers send, in processes of its own that can be stopped: `process` asks, `worker` is what runs
there. Templates are rendered so, media decoded, and grammars compiled. `memory` ends one when memory is short."""
