"""Who may come in, and in which shape: keys, pages of other sites, bodies, connections, errors."""
