"""Rows about finished runs, and their statistics."""
