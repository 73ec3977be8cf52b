"""What clients ask of a model, one file per API or task, and the replies that are still being written."""
