"""Write a tiny random Llama with a byte-level tokenizer: `python tinymodel.py FOLDER`.

Runs in the engine's own environment (torch, transformers, tokenizers), never in Bayplan's. About 0.7 million
parameters: its text is noise, its token counts, streams and KV cache are real.
"""

import sys
from itertools import islice, product
from pathlib import Path
from string import ascii_lowercase

VOCABULARY = 512
CONTEXT_TOKENS = 2048
SEED = 20261129
SPECIAL = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>"}
CHAT_TEMPLATE = (
    "{% for message in messages %}{{ message['role'] + ': ' + message['content'] + '\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ 'assistant: ' }}{% endif %}"
)


def vocabulary() -> dict[str, int]:
    """Special tokens, one token a byte, then pairs of letters that only generation produces.

    Without merges a prompt has exactly as many tokens as UTF-8 bytes, which makes counts comparable with an engine that
    has no tokenizer; the pairs fill the vocabulary, so that every id which the model can draw decodes to text.
    """
    from tokenizers import pre_tokenizers  # noqa: PLC0415

    pieces = [*SPECIAL.values(), *sorted(pre_tokenizers.ByteLevel.alphabet())]
    pairs = (first + second for first, second in product(ascii_lowercase, repeat=2))
    pieces += islice(pairs, VOCABULARY - len(pieces))
    return {piece: number for number, piece in enumerate(pieces)}


def write_tokenizer(folder: Path) -> None:
    """Byte-level, without merges: any text is valid input."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers  # noqa: PLC0415
    from transformers import PreTrainedTokenizerFast  # type: ignore[import-not-found]  # noqa: PLC0415

    tokenizer = Tokenizer(models.BPE(vocab=vocabulary(), merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    wrapped = PreTrainedTokenizerFast(tokenizer_object=tokenizer, **SPECIAL)
    wrapped.chat_template = CHAT_TEMPLATE
    sample = "one token a byte: ä, €"
    counted = len(wrapped(sample)["input_ids"])
    if (len(wrapped), counted) != (VOCABULARY, len(sample.encode())):
        raise SystemExit(f"the tokenizer has {len(wrapped)} entries and makes {counted} tokens of {sample!r}")
    wrapped.save_pretrained(folder)


def write_weights(folder: Path) -> None:
    """Random weights from a fixed seed, so that two machines generate the same noise."""
    import torch  # type: ignore[import-not-found]  # noqa: PLC0415
    from transformers import LlamaConfig, LlamaForCausalLM  # noqa: PLC0415

    torch.manual_seed(SEED)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=CONTEXT_TOKENS,
        bos_token_id=0,
        eos_token_id=1,
        pad_token_id=2,
        tie_word_embeddings=False,
    )
    LlamaForCausalLM(config).to(torch.bfloat16).save_pretrained(folder, safe_serialization=True)


def main() -> None:
    """Write tokenizer, then weights, into the folder named on the command line."""
    if len(sys.argv) != 2:
        raise SystemExit("usage: tinymodel.py FOLDER")
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    write_tokenizer(folder)
    write_weights(folder)


if __name__ == "__main__":
    main()
