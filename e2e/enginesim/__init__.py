"""A look-alike of vLLM's server without a model: the same HTTP surface, metrics, scheduling and ways to fail.

`python -m e2e.enginesim serve MODEL --host 127.0.0.2 --port 8000 [vLLM flags]`; `--help` lists what has an effect.
"""
