"""The native side: llama.cpp through llama-cpp-python's bindings. No other package imports `llama_cpp`.

`files` looks at a model's file, `fit` chooses what fits, `loader` loads; `weights`, `context` and `sampling` are what
is loaded. `files.gguf_header` does not load the library; every other module does, through `library`.
"""
