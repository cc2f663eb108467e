"""The Rollout reconciler: from what gateways, pods and people say to one plan, by `planning.rollout`."""
