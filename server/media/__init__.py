"""Loads and decodes images, audio, video and documents."""
