"""What the server says about itself and its models, and what changes them."""
