"""Start an engine with dummy weights and print how it pages its KV cache: `python startcache.py FOLDER FLAGS`.

Runs in the engine's own environment, never in Bayplan's. FLAGS is JSON; the last line of the output is JSON too.
"""

import json
import os
import sys


def main() -> None:
    """Start the model in FOLDER and print blocks, block size, and what the engine says of tokens."""
    # One process: what the engine core finds is in this process's own configuration then.
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    from vllm import LLM  # type: ignore[import-not-found]  # noqa: PLC0415

    engine = LLM(
        model=sys.argv[1],
        load_format="dummy",
        skip_tokenizer_init=True,
        enforce_eager=True,
        **json.loads(sys.argv[2]),
    )
    cache = engine.llm_engine.vllm_config.cache_config
    print(
        json.dumps(
            {
                "blocks": cache.num_gpu_blocks,
                "block_size": cache.block_size,
                "tokens": getattr(cache, "kv_cache_size_tokens", None),
            }
        )
    )


if __name__ == "__main__":
    main()
