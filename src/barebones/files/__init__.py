"""Files: the formats of all tensors that the library writes, and how they are read back."""
