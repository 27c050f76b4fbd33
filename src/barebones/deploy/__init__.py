"""Deployment: networks that are really smaller and faster, and files for other programs."""
