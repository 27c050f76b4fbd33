"""Pictures, tables and pages about runs."""
