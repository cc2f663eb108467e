"""Fakes at the ports of the package."""
