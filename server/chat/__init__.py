"""Between messages and text: templates (`template`), and what the text means (`parser`, `reasoning`, `hermes`)."""
