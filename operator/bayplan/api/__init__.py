"""The public contract: the kinds as pydantic models, conditions and reasons, names, and the CRD emitter."""
