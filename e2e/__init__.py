"""End-to-end surroundings: a real control plane, a kubelet stand-in, an engine simulator, chaos and scenarios."""
