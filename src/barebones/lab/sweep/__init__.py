"""Many runs: what is queued, the processes that run them, and how far they are."""
