"""Where the beginning of a prompt comes from: `find` is the door, the others are how it compares. Pure."""
