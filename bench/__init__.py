"""Benchmarks: counts are promises and are asserted, times are printed beside a baseline of the same run."""

KOPF_SERVES = "kopf handlers serve"
"""What the baseline prints when it starts."""
