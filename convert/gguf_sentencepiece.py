# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""SentencePiece BPE from GGUF metadata (tokenizer model "llama": Llama 2, Mistral).

SentencePiece merges the neighbours whose union is the piece of the highest score. The tokenizers package
wants a list of merges instead; it is the same algorithm when that list holds every way to cut every piece in
two, ordered by the score of the piece.
"""

from collections.abc import Sequence

import tokenizers
from tokenizers import decoders, models, normalizers

NORMAL = 1  # value of tokenizer.ggml.token_type
_SPACE = "\u2581"


def sentencepiece_backend(
    tokens: list[str], scores: Sequence[float], types: Sequence[int], unknown: str | None, prefix: bool
) -> tokenizers.Tokenizer:
    """A tokenizer without special tokens and post-processor.

    Args:
        tokens: text of every id; spaces are U+2581, single bytes are written <0x00> to <0xFF>.
        scores: score of every piece, higher merges first.
        types: kind of every token; only `NORMAL` ones come from merges.
        unknown: the token for what no piece and no byte covers.
        prefix: text gets a space in front.
    """
    backend = tokenizers.Tokenizer(
        models.BPE(
            vocab={token: i for i, token in enumerate(tokens)},
            merges=merges(tokens, scores, types),
            unk_token=unknown,
            fuse_unk=True,
            byte_fallback=True,
        )
    )
    to_space = normalizers.Replace(" ", _SPACE)
    from_space = [decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    if prefix:
        backend.normalizer = normalizers.Sequence([normalizers.Prepend(_SPACE), to_space])
        backend.decoder = decoders.Sequence([*from_space, decoders.Strip(" ", 1, 0)])
    else:
        backend.normalizer = normalizers.Sequence([to_space])
        backend.decoder = decoders.Sequence(from_space)
    return backend


def merges(tokens: list[str], scores: Sequence[float], types: Sequence[int]) -> list[tuple[str, str]]:
    """Every cut of every piece into two pieces, by falling score of the whole, then by ids of the parts."""
    ids = {token: i for i, token in enumerate(tokens) if types[i] == NORMAL}
    cuts = []
    for token, i in ids.items():
        for at in range(1, len(token)):
            left, right = token[:at], token[at:]
            if left in ids and right in ids:
                cuts.append((-scores[i], ids[left], ids[right]))
    return [(tokens[left], tokens[right]) for _, left, right in sorted(cuts)]
