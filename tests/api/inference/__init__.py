"""What clients ask of a model: one file for each endpoint, or for what several of them share."""
