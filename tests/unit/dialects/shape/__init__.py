"""What fields say of the output's shape and of thoughts, whatever the format they stand in."""
