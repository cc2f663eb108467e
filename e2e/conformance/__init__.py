"""Measures the engine simulator against a real vLLM: the same requests, every difference explained or failed."""
