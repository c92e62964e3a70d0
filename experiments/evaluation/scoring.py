"""Log-likelihood of token spans under a causal language model: the one place that runs it.

Perplexity and the lm-eval adapter both reduce to *spans*: ``inputs`` fed to the model and
``targets`` predicted by its last ``len(targets)`` positions. Spans that begin alike share a row
(`experiments.evaluation.rows`). Rows are padded on the right, where no token looks, so results
don't depend on the neighbours in the batch.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from experiments.evaluation.rows import Row, share, single

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

#: Logits held at once (elements); keeps a batch of long rows over a large vocabulary in memory.
MAX_LOGITS = 2**26
#: Rows shorter than this share of a batch's longest are not padded to it.
LEAST_FILLED = 0.8
#: Tokens whose logits are reduced together, few enough to stay in a processor's cache.
NUM_TOGETHER = 64


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
        taken = inspect.signature(model.forward).parameters
        self._takes_branches = "position_ids" in taken and "attention_mask" in taken

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """Tokens of each text; the tokenizer adds no special ones."""
        if not texts:
            return []
        return self.tokenizer(list(texts), add_special_tokens=False, verbose=False)["input_ids"]

    def score(self, spans: Sequence[Span]) -> list[tuple[float, bool]]:
        """Log-likelihood of each span's targets, and whether greedy decoding yields them.

        Spans with equal ``inputs`` are run once, a common beginning of ``inputs`` is run once
        where the model takes positions and a mask.

        Returns:
            One ``(nats, is_greedy)`` per span, in the order of ``spans``.
        """
        import torch

        results: list[tuple[float, bool]] = [(0.0, True)] * len(spans)
        vocab_size = int(self.model.config.vocab_size)
        with torch.inference_mode():
            rows = _rows(spans, longest=self.context if self._takes_branches else 0)
            for batch in _batches(spans, rows, self.batch_size, vocab_size):
                members = [i for row in batch for branch in row.members for i in branch]
                totals, greedy = _score_batch(self.model, spans, batch)
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
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

    from experiments import transforms

    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = transforms.load(
        model_dir, lambda config: AutoModelForCausalLM.from_config(AutoConfig.for_model(**config))
    )
    if model is None:
        model = AutoModelForCausalLM.from_pretrained(model_dir, local_files_only=True)
    model = model.to(getattr(torch, dtype))
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


def _rows(spans: Sequence[Span], *, longest: int) -> list[Row]:
    """Rows of all spans that have something to score; ``longest=0`` shares no beginnings."""
    by_inputs: dict[tuple[int, ...], list[int]] = {}
    for index, span in enumerate(spans):
        if span.targets:
            by_inputs.setdefault(span.inputs, []).append(index)
    if longest:
        return share(by_inputs, longest=longest)
    return [single(inputs, members) for inputs, members in by_inputs.items()]


def _places(spans: Sequence[Span], row: Row) -> Iterator[tuple[int, list[int]]]:
    """Each span of a row, and the places in the row that predict its targets."""
    for number, members in enumerate(row.members):
        for index in members:
            yield index, row.places(number, spans[index].start)


def _batches(
    spans: Sequence[Span], rows: Sequence[Row], batch_size: int, vocab_size: int
) -> Iterator[list[Row]]:
    """Rows, longest first, cut into batches of similar lengths."""
    batch: list[Row] = []
    longest, first = 0, 0
    for row in sorted(rows, key=lambda row: (-row.length, row.trunk, row.branches)):
        start = min(places[0] for _, places in _places(spans, row))
        kept = longest - min(first, start)
        if batch and (
            len(batch) == batch_size
            or row.length < LEAST_FILLED * longest
            or (len(batch) + 1) * kept * vocab_size > MAX_LOGITS
        ):
            yield batch
            batch = []
        if not batch:
            longest, first = row.length, start
        first = min(first, start)
        batch.append(row)
    if batch:
        yield batch


def _score_batch(
    model: PreTrainedModel, spans: Sequence[Span], rows: Sequence[Row]
) -> tuple[list[float], list[bool]]:
    """Totals and greediness of the spans in ``rows``, in row order."""
    import torch

    longest = rows[0].length
    owner: list[int] = []
    row_index: list[int] = []
    place: list[int] = []
    target: list[int] = []
    num_spans = 0
    for number, row in enumerate(rows):
        for index, places in _places(spans, row):
            owner += [num_spans] * len(places)
            row_index += [number] * len(places)
            place += places
            target += spans[index].targets
            num_spans += 1
    first = min(place)
    logits = _logits(model, rows, first)
    kept = longest - first
    flat = torch.tensor([r * kept + p - first for r, p in zip(row_index, place, strict=True)])
    targets = torch.tensor(target)
    scores = _score_places(logits.flatten(0, 1), flat, targets).double().cpu()
    sums = torch.zeros(2, num_spans, dtype=torch.float64)
    sums.index_add_(1, torch.tensor(owner), scores)
    return sums[0].tolist(), [count == 0 for count in sums[1].tolist()]


def _score_places(
    logits: torch.Tensor, places: torch.Tensor, targets: torch.Tensor
) -> torch.Tensor:
    """Log-likelihood of each target, and 1 where it is not the greedy choice, shape (2, tokens).

    Args:
        logits: of all places, shape (places, vocabulary).
        places: of each target; sequences of one row have those of its trunk in common.
        targets: tokens.
    """
    import torch

    order = places.argsort()
    distinct, counts = places[order].unique_consecutive(return_counts=True)
    parts, last = [], 0
    for part, sizes in zip(distinct.split(NUM_TOGETHER), counts.split(NUM_TOGETHER), strict=True):
        first, last = last, last + int(sizes.sum())
        rows = torch.arange(len(part)).repeat_interleave(sizes).to(logits.device)
        wanted = targets[order[first:last]].to(logits.device)
        values = logits.index_select(0, part.to(logits.device)).float()
        wrong = values[rows, wanted] < values.amax(-1)[rows]
        tied = (~wrong).nonzero()[:, 0]  # of equal maxima, the first is the greedy choice
        wrong[tied] = values[rows[tied]].argmax(-1) != wanted[tied]
        parts.append(torch.stack([values.log_softmax(-1)[rows, wanted], wrong.float()]))
    return torch.cat(parts, 1)[:, order.argsort().to(logits.device)]


def _logits(model: PreTrainedModel, rows: Sequence[Row], first: int) -> torch.Tensor:
    """Logits of places ``first`` on, shape (rows, longest - first, vocabulary)."""
    import torch

    longest = rows[0].length

    def padded(values: list[int], filler: int) -> list[int]:
        return values + [filler] * (longest - len(values))

    inputs = torch.tensor([padded(row.tokens, 0) for row in rows], device=model.device)
    options: dict[str, Any] = {"use_cache": False}
    if any(len(row.branches) > 1 for row in rows):
        positions = torch.tensor([padded(row.positions, 0) for row in rows])
        owners = torch.tensor([padded(row.owners, len(row.branches)) for row in rows])
        options["position_ids"] = positions.to(model.device)
        options["attention_mask"] = _mask(owners, model.dtype).to(model.device)
    try:
        return model(inputs, logits_to_keep=longest - first, **options).logits
    except TypeError:  # a model class without logits_to_keep
        return model(inputs, **options).logits[:, first:]


def _mask(owners: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """What is added to attention scores, shape (rows, 1, longest, longest).

    Zero for earlier places of the trunk and of the own branch, else the lowest number.
    """
    import torch

    own = owners[:, :, None] == owners[:, None, :]
    seen = (own | (owners[:, None, :] == -1)).tril()
    return torch.zeros(seen.shape, dtype=dtype).masked_fill_(~seen, torch.finfo(dtype).min)[:, None]
