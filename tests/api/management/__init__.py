"""What is for who runs the server: models, slots, health, metrics, the page, its life."""
