"""What Llamapool is, and how to configure and call it."""

from random import Random

from .facts import dressed
from .sample import Sample, Split, exchange, phrase

_TOPICS = (
    (("What is Llamapool?", "What's Llamapool?", "Tell me about Llamapool.", "Explain Llamapool.", "what is llamapool",
      "Do you know Llamapool?", "What does Llamapool do?", "What is Llamapool for?"),
     "Llamapool is a server for GGUF models, written in Python.", "server"),
    (("How do I start Llamapool?", "How can I start Llamapool?", "How do I run Llamapool?", "How to start the server?",
      "Which command starts Llamapool?", "How do I start the server?", "How do I launch Llamapool?"),
     "Run `make serve`, or `llamapool` after the installation.", "make serve"),
    (("Which port does Llamapool use?", "What port does Llamapool use?", "On which port does Llamapool listen?",
      "What is the default port?", "Which port is the default of Llamapool?", "On what port is the server?"),
     "Llamapool listens on port 8080.", "8080"),
    (("How do I change the port?", "How can I change the port?", "How do I set the port of Llamapool?",
      "Can I use another port?", "How do I use a different port?"),
     "Set `server.port` in the YAML file, or pass `--port`.", "--port"),
    (("How do I configure Llamapool?", "How can I configure Llamapool?", "Where do I configure Llamapool?",
      "How is Llamapool configured?", "How do I set options in Llamapool?", "Where are the settings of Llamapool?"),
     "Llamapool reads a YAML file, environment variables and flags. The default is config/default.yaml.", "YAML"),
    (("How do I add a model?", "How can I add a model to Llamapool?", "How do I add another model?",
      "How do I use my own model?", "Where do I put a model?", "How do I serve my own model?"),
     "Add an entry with a path under `models` in the YAML file.", "models"),
    (("Which model format does Llamapool use?", "What models can Llamapool load?", "Which files does Llamapool load?",
      "What model files does Llamapool need?", "What format are the models in?"),
     "Llamapool loads GGUF files.", "GGUF"),
    (("How do I call Llamapool?", "How can I call Llamapool?", "How do I send a request to Llamapool?",
      "How do I chat with Llamapool?", "Which endpoint do I call for chat?", "What is the chat endpoint?"),
     "Send a POST request to /v1/chat/completions.", "/v1/chat/completions"),
    (("How do I get embeddings?", "Which endpoint gives embeddings?", "What is the endpoint for embeddings?",
      "How can I get embeddings from Llamapool?"),
     "Send a POST request to /v1/embeddings.", "/v1/embeddings"),
    (("How do I check the health?", "How do I see if Llamapool is healthy?", "What is the health endpoint?",
      "Which endpoint shows the health of the server?"),
     "Send a GET request to /health.", "/health"),
    (("Where are the metrics?", "How do I get metrics?", "Which endpoint shows metrics?",
      "Does Llamapool have metrics?", "How can I see the metrics of Llamapool?"),
     "The metrics are at /metrics, for Prometheus.", "/metrics"),
    (("How do I list the models?", "Which endpoint lists the models?", "How can I see all models?",
      "Where do I see which models there are?"),
     "Send a GET request to /v1/models.", "/v1/models"),
    (("How do I set an API key?", "How can I protect Llamapool?", "Does Llamapool support API keys?",
      "How do I use an API key with Llamapool?"),
     "Pass `--api-key` with a key of your own.", "--api-key"),
    (("Can I use the OpenAI client?", "Does Llamapool work with the OpenAI SDK?",
      "Is Llamapool compatible with OpenAI?", "Can the OpenAI SDK talk to Llamapool?"),
     "Yes. Point the base URL of the OpenAI client at Llamapool.", "base URL"),
    (("Can Llamapool serve several models?", "Can Llamapool run more than one model?",
      "Does Llamapool support several models?", "How many models can Llamapool serve?"),
     "Yes. Llamapool serves several models from one process.", "several models"),
    (("Is Llamapool free?", "What licence does Llamapool have?", "What is the license of Llamapool?",
      "Is Llamapool open source?", "Under which licence is Llamapool?"),
     "Llamapool is free software under the MIT licence.", "MIT"),
    (("What is GGUF?", "What's a GGUF file?", "What does GGUF mean?", "Explain GGUF.", "What is a GGUF file?"),
     "GGUF is a file format for language models, made for llama.cpp.", "file format"),
    (("What is llama.cpp?", "What's llama.cpp?", "Tell me about llama.cpp.", "Explain llama.cpp.",
      "What does llama.cpp do?"),
     "llama.cpp is a program that runs language models on ordinary computers.", "runs language models"),
    (("How do I set the context size?", "How can I change the context size?", "How do I get a longer context?",
      "Where do I set the context length?"),
     "Set `n_ctx` for the model, or pass `--ctx-size`.", "n_ctx"),
    (("What is a slot?", "What is a slot in Llamapool?", "What are slots?", "Explain slots.", "What does slot mean?"),
     "A slot is one sequence that the server works on.", "sequence"),
)  # fmt: skip


def llamapool(rng: Random, split: Split) -> Sample:
    """A question on Llamapool."""
    phrasings, answer, key = rng.choice(_TOPICS)
    question = dressed(rng, phrase(rng, split, phrasings))
    key = key.replace(".", r"\.")
    return exchange("llamapool", question, answer, "This is about Llamapool.", [key])
