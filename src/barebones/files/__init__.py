"""Files: every file that the library writes, and the way back."""
