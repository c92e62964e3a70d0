"""Likeliest continuations of prompts, greedy or by beam search, in batches with a key-value cache.

The search is transformers' own. Prompts of models that look at no more than a mask and positions
are padded on the left, where no token looks, and what an encoder reads on the right; prompts of
other models share a batch only where they are equally long.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING

from experiments.evaluation.lm.scoring import PACKABLE

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from experiments.evaluation.lm.scoring import Scorer


def continuations(
    scorer: Scorer,
    prompts: Sequence[Sequence[int]],
    *,
    limit: int,
    stops: tuple[str, ...],
    num_beams: int = 1,
) -> list[str]:
    """The continuation of each prompt, cut before the first stop string.

    Args:
        scorer: the model with its tokenizer; ``batch_size`` prompts run at once.
        prompts: tokens, at least one each.
        limit: most tokens of a continuation.
        stops: strings that end a text.
        num_beams: width of the beam search; 1 is greedy.
    """
    ends = _ends(scorer.tokenizer, stops)
    texts = [""] * len(prompts)
    for batch in _batches(scorer, prompts):
        tokens = _generate(scorer, [prompts[i] for i in batch], limit, ends, num_beams)
        for index, text in zip(batch, scorer.tokenizer.batch_decode(tokens), strict=True):
            texts[index] = before(text, stops)
    return texts


def before(text: str, stops: Sequence[str]) -> str:
    """The text up to the first stop string."""
    return text[: min([len(text), *(text.find(stop) for stop in stops if stop in text)])]


def _batches(scorer: Scorer, prompts: Sequence[Sequence[int]]) -> Iterator[list[int]]:
    """Indices of the prompts that run together, longest first."""
    config = scorer.model.config
    may_pad = config.model_type in PACKABLE or config.is_encoder_decoder
    batch: list[int] = []
    for index in sorted(range(len(prompts)), key=lambda i: -len(prompts[i])):
        differs = bool(batch) and len(prompts[batch[0]]) != len(prompts[index])
        if len(batch) == scorer.batch_size or (differs and not may_pad):
            yield batch
            batch = []
        batch.append(index)
    if batch:
        yield batch


def _generate(
    scorer: Scorer,
    prompts: Sequence[Sequence[int]],
    limit: int,
    ends: list[int],
    num_beams: int,
) -> list[list[int]]:
    """New tokens of each prompt; what follows an end is padding."""
    import torch

    width, encodes = max(map(len, prompts)), scorer.model.config.is_encoder_decoder

    def padded(values: Iterable[list[int]], fill: int) -> torch.Tensor:
        gaps = [[fill] * (width - len(prompt)) for prompt in prompts]
        rows = [v + gap if encodes else gap + v for v, gap in zip(values, gaps, strict=True)]
        return torch.tensor(rows, device=scorer.model.device)

    with torch.inference_mode():
        tokens = scorer.model.generate(  # type: ignore[operator]
            padded(map(list, prompts), scorer.prefix),
            attention_mask=padded(([1] * len(prompt) for prompt in prompts), 0),
            max_new_tokens=limit,
            do_sample=False,
            num_beams=num_beams,
            eos_token_id=ends or None,
            pad_token_id=ends[0] if ends else scorer.prefix,
            use_cache=True,
        )
    return tokens[:, 1 if encodes else width :].tolist()  # a decoder's first token is no text


@lru_cache(maxsize=16)
def _ends(tokenizer: PreTrainedTokenizerBase, stops: tuple[str, ...]) -> list[int]:
    """Tokens that hold a whole stop string, so that nothing after them counts.

    A stop string that only several tokens spell does not end the search, but cuts the text.
    """
    texts = tokenizer.batch_decode([[token] for token in range(len(tokenizer))])
    return [token for token, text in enumerate(texts) if any(stop in text for stop in stops)]
