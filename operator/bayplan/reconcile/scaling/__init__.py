"""Autoscaling of an InferenceModel, beside its reconcile workers.

- `history`: what was measured of one model, and when. `sampling`: one task per model that measures.
- `decide`: from history and standing to `planning.scaling`. `describe`: the decision as status and condition.
- `autoscaler`: what the reconciler asks, and what wakes it up.

A target is written to status before anything is done for it, so a restarted operator goes on from there. Without an
answer it changes nothing but what the user's own bounds ask for.
"""
