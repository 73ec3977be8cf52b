"""Between messages and text: templates (`template`, `jinja`, `capabilities`, `messages`), what the output means
(`parser`, `reasoning`, `calls` with `hermes`, `llama3`, `mistral`), and grammars that force a call (`tool_choice`)."""
