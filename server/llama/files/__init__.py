"""What a file says and whether it may be opened: every check that comes before the library reads it."""
