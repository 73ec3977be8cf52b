"""The native side: llama.cpp through llama-cpp-python's bindings. No other package imports `llama_cpp`.

`environment` (what must be set before the library is loaded) and `gguf_header` do not load it; every other
module does, through `library`.
"""
