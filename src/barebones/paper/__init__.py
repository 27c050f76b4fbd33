"""The paper: its figures, its numbers and its theory."""
