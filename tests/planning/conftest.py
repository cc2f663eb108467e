"""Property tests judge results; how long one example takes says more about the machine than about the planner."""

from hypothesis import settings

settings.register_profile("no-deadline", deadline=None)
settings.load_profile("no-deadline")
