"""The paper: its figures and its numbers."""
