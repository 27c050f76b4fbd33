"""Settings for all tests: repeatable, and no deadline that a busy machine could miss."""

import hypothesis

hypothesis.settings.register_profile("barebones", deadline=None, derandomize=True, print_blob=True)
hypothesis.settings.load_profile("barebones")
