"""One module per kind, and one per protocol that kinds share: replica groups, warm-up, drain."""
