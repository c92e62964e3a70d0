"""Log-likelihood of token spans under a causal language model: the one place that runs it.

Perplexity and the lm-eval adapter both reduce to *spans*: ``inputs`` fed to the model and
``targets`` predicted by its last ``len(targets)`` positions. Rows are padded on the right; a
causal model never looks there, so no attention mask is needed and results don't depend on the
neighbours in the batch.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

#: Logits held at once (elements); keeps a batch of long rows over a large vocabulary in memory.
MAX_LOGITS = 2**26


class Span(NamedTuple):
    """Tokens fed to the model and the tokens that its last positions must predict."""

    inputs: tuple[int, ...]
    targets: tuple[int, ...]

    @property
    def start(self) -> int:
        """First position of ``inputs`` whose prediction counts."""
        return len(self.inputs) - len(self.targets)


class Scorer:
    """A causal language model with its tokenizer.

    Args:
        model: in evaluation mode, on its device.
        tokenizer: the model's own.
        batch_size: rows per forward pass (fewer where `MAX_LOGITS` would be exceeded).

    Attributes:
        context: longest sequence (tokens) that the model takes.
        prefix: token that stands for "nothing before": beginning of sequence, else end.
    """

    def __init__(
        self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, *, batch_size: int
    ) -> None:
        self.model = model
        self.tokenizer = tokenizer
        self.batch_size = batch_size
        self.context = _context_length(model)
        self.prefix = _prefix_token(tokenizer)

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """Tokens of each text; the tokenizer adds no special ones."""
        if not texts:
            return []
        return self.tokenizer(list(texts), add_special_tokens=False, verbose=False)["input_ids"]

    def score(self, spans: Sequence[Span]) -> list[tuple[float, bool]]:
        """Log-likelihood of each span's targets, and whether greedy decoding yields them.

        Spans with equal ``inputs`` share one forward pass.

        Returns:
            One ``(nats, is_greedy)`` per span, in the order of ``spans``.
        """
        import torch

        results: list[tuple[float, bool]] = [(0.0, True)] * len(spans)
        vocab_size = int(self.model.config.vocab_size)
        with torch.inference_mode():
            for rows in _batches(spans, self.batch_size, vocab_size):
                members = [index for row in rows for index in row]
                totals, greedy = _score_batch(self.model, spans, rows)
                for index, total, is_greedy in zip(members, totals, greedy, strict=True):
                    results[index] = (total, is_greedy)
        return results


def load(model_dir: Path, *, batch_size: int, dtype: str) -> Scorer:
    """Read an exported model with its tokenizer, onto the GPU if there is one.

    Args:
        model_dir: folder written by ``save_pretrained``.
        batch_size: rows per forward pass.
        dtype: name of the number format to compute in, as in ``torch.<dtype>``.
    """
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = AutoModelForCausalLM.from_pretrained(
        model_dir, dtype=getattr(torch, dtype), local_files_only=True
    )
    tokenizer = AutoTokenizer.from_pretrained(model_dir, local_files_only=True)
    return Scorer(model.eval().to(device), tokenizer, batch_size=batch_size)


def _context_length(model: PreTrainedModel) -> int:
    """Context length, under whichever name the config has it."""
    for key in ("n_positions", "max_position_embeddings", "n_ctx"):
        length = getattr(model.config, key, None)
        if length:
            return int(length)
    raise ValueError(
        f"the config of {type(model).__name__} has none of n_positions, "
        "max_position_embeddings and n_ctx, so its context length is unknown"
    )


def _prefix_token(tokenizer: PreTrainedTokenizerBase) -> int:
    """BOS, else EOS."""
    for token in (tokenizer.bos_token_id, tokenizer.eos_token_id):
        if token is not None:
            return int(token)
    raise ValueError("the tokenizer has neither bos_token nor eos_token; scoring needs one")


def _batches(spans: Sequence[Span], batch_size: int, vocab_size: int) -> Iterator[list[list[int]]]:
    """Rows (lists of span indices with equal inputs), longest first, cut into batches."""
    by_inputs: dict[tuple[int, ...], list[int]] = {}
    for index, span in enumerate(spans):
        if span.targets:
            by_inputs.setdefault(span.inputs, []).append(index)
    batch: list[list[int]] = []
    longest, first = 0, 0
    for inputs in sorted(by_inputs, key=lambda inputs: (-len(inputs), inputs)):
        row = by_inputs[inputs]
        start = min(spans[index].start for index in row)
        kept = longest - min(first, start)
        if batch and (
            len(batch) == batch_size or (len(batch) + 1) * kept * vocab_size > MAX_LOGITS
        ):
            yield batch
            batch = []
        if not batch:
            longest, first = len(inputs), start
        first = min(first, start)
        batch.append(row)
    if batch:
        yield batch


def _score_batch(
    model: PreTrainedModel, spans: Sequence[Span], rows: Sequence[Sequence[int]]
) -> tuple[list[float], list[bool]]:
    """Totals and greediness of the spans in ``rows``, in row order."""
    import torch
    from torch.nn.functional import cross_entropy

    heads = [spans[row[0]].inputs for row in rows]
    longest = max(map(len, heads))
    inputs = torch.tensor([[*head, *[0] * (longest - len(head))] for head in heads])
    owner: list[int] = []
    row_index: list[int] = []
    position: list[int] = []
    target: list[int] = []
    num_spans = 0
    for number, row in enumerate(rows):
        for index in row:
            span = spans[index]
            owner += [num_spans] * len(span.targets)
            row_index += [number] * len(span.targets)
            position += range(span.start, len(span.inputs))
            target += span.targets
            num_spans += 1
    first = min(position)
    logits = _logits(model, inputs.to(model.device), first)
    targets = torch.tensor(target, device=logits.device)
    scored = logits[row_index, [p - first for p in position]].float()
    losses = cross_entropy(scored, targets, reduction="none").double().cpu()
    wrong = (scored.argmax(-1) != targets).double().cpu()
    sums = torch.zeros(2, num_spans, dtype=torch.float64)
    sums.index_add_(1, torch.tensor(owner), torch.stack([-losses, wrong]))
    return sums[0].tolist(), [count == 0 for count in sums[1].tolist()]


def _logits(model: PreTrainedModel, inputs: torch.Tensor, first: int) -> torch.Tensor:
    """Logits of positions ``first`` on, shape (rows, length - first, vocabulary)."""
    keep = inputs.shape[1] - first
    try:
        return model(inputs, use_cache=False, logits_to_keep=keep).logits
    except TypeError:  # a model class without logits_to_keep
        return model(inputs, use_cache=False).logits[:, first:]
