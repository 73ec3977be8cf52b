"""The native side: llama.cpp through llama-cpp-python's bindings. No other package imports `llama_cpp`.

`files` validates a model's file, `fit` chooses a context size and placement, `loader` loads; `weights`, `context`
and `sampling` are the loaded objects. `files.gguf_header` does not load the library; every other module does,
through `library`.
"""
