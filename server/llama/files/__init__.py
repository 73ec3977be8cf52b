"""What a file contains and whether it may be opened: all checks before the library reads it."""
