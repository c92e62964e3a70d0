"""Log-likelihood of token spans under a causal language model: the one place that runs it.

Perplexity and the lm-eval adapter both reduce to *spans*: ``inputs`` fed to the model and
``targets`` predicted by its last ``len(targets)`` positions. Where the model allows, spans are
packed into rows, and those that begin alike share their beginning
(`experiments.evaluation.lm.rows`). Rows are padded on the right, where no token looks, so results
don't depend on the neighbours in the batch.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from experiments.errors import UserError
from experiments.evaluation.exported import read_model
from experiments.evaluation.lm.rows import Row, pack
from experiments.evaluation.skipping import skipping
from experiments.memory import keep_memory
from experiments.store.io import read_cache

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

#: Kinds of model that score a packed row as its sequences: each token attends to what the mask
#: says and to nothing else, at the positions given. Not so with sliding windows, recurrence,
#: convolutions or alibi; those run one sequence per row.
PACKABLE = frozenset({"gpt2", "gpt_neox", "llama", "opt"})
#: Logits held at once (elements); keeps a batch of long rows over a large vocabulary in memory.
MAX_LOGITS = 2**26
#: Rows shorter than this share of a batch's longest are not padded to it.
LEAST_FILLED = 0.8
#: Logits reduced together (elements), few enough to stay in a processor's cache.
CACHED_LOGITS = 2**18
#: Rows are padded to a multiple of this; attention is up to twice slower at other lengths.
MULTIPLE = 16


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
        num_encoded: tokens encoded so far.
        num_unknown: those of them that stand for text that the vocabulary lacks.
    """

    def __init__(
        self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, *, batch_size: int
    ) -> None:
        self.model = model
        self.tokenizer = tokenizer
        self.batch_size = batch_size
        self.context = _context_length(model)
        self.prefix = _prefix_token(tokenizer)
        self.num_encoded = self.num_unknown = 0

    @property
    def tokenizer_file(self) -> Path | None:
        """The tokenizer's file, where it was read from a folder."""
        folder = self.tokenizer.name_or_path
        path = Path(folder) / "tokenizer.json"
        return path if folder and path.is_file() else None

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """Tokens of each text; the tokenizer adds no special ones."""
        if not texts:
            return []
        encoded = self.tokenizer(list(texts), add_special_tokens=False, verbose=False)["input_ids"]
        self.num_encoded += sum(map(len, encoded))
        self.num_unknown += sum(tokens.count(self.tokenizer.unk_token_id) for tokens in encoded)
        return encoded

    def score(self, spans: Sequence[Span]) -> list[tuple[float, bool]]:
        """Log-likelihood of each span's targets, and whether greedy decoding yields them.

        Spans with equal ``inputs`` are run once, in `PACKABLE` models a common beginning of
        ``inputs`` too.

        Returns:
            One ``(nats, is_greedy)`` per span, in the order of ``spans``.
        """
        import torch

        results: list[tuple[float, bool]] = [(0.0, True)] * len(spans)
        vocab_size = int(self.model.config.vocab_size)
        with torch.inference_mode():
            packable = self.model.config.model_type in PACKABLE
            rows = _rows(spans, longest=self.context if packable else 0)
            for batch in _batches(spans, rows, self.batch_size, vocab_size):
                order = [i for row in batch for members in row.members for i in members]
                width = min(_padded(batch[0].length), self.context)
                totals, greedy = _score_batch(self.model, spans, batch, width)
                for index, total, is_greedy in zip(order, totals, greedy, strict=True):
                    results[index] = (total, is_greedy)
        return results


def load(model_dir: Path, *, batch_size: int, dtype: str, execution: str = "auto") -> Scorer:
    """Read an exported model with its tokenizer, onto the GPU if there is one.

    Args:
        model_dir: folder written by ``save_pretrained``.
        batch_size: rows per forward pass.
        dtype: name of the number format to compute in, as in ``torch.<dtype>``.
        execution: ``auto`` skips the work of zeros where that is faster, ``dense`` never does.

    Raises:
        ValueError: if the folder lacks weights that the model has.
    """
    import torch
    from transformers import AutoModelForCausalLM, AutoModelForSeq2SeqLM, AutoTokenizer

    keep_memory()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    encodes = read_cache(model_dir / "config.json").get("is_encoder_decoder")
    auto_model = AutoModelForSeq2SeqLM if encodes else AutoModelForCausalLM
    model = read_model(model_dir, auto_model).to(device, getattr(torch, dtype))
    model = skipping(model, execution)
    tokenizer = AutoTokenizer.from_pretrained(model_dir, local_files_only=True)
    return Scorer(model, tokenizer, batch_size=batch_size)


def _context_length(model: PreTrainedModel) -> int:
    """Context length, under whichever name the config has it."""
    for key in ("n_positions", "max_position_embeddings", "n_ctx"):
        length = getattr(model.config, key, None)
        if length:
            return int(length)
    raise UserError(
        f"the config of {type(model).__name__} has none of n_positions, "
        "max_position_embeddings and n_ctx, so its context length is unknown"
    )


def _prefix_token(tokenizer: PreTrainedTokenizerBase) -> int:
    """BOS, else EOS."""
    for token in (tokenizer.bos_token_id, tokenizer.eos_token_id):
        if token is not None:
            return int(token)
    raise UserError("the tokenizer has neither bos_token nor eos_token; scoring needs one")


def _rows(spans: Sequence[Span], *, longest: int) -> list[Row]:
    """Rows of all spans that have something to score; ``longest=0`` shares no beginnings."""
    by_inputs: dict[tuple[int, ...], list[int]] = {}
    for index, span in enumerate(spans):
        if span.targets:
            by_inputs.setdefault(span.inputs, []).append(index)
    return pack(by_inputs, longest=longest)


def _places(spans: Sequence[Span], row: Row) -> Iterator[tuple[int, list[int]]]:
    """Each span of a row, and the places in the row that predict its targets."""
    for path, members in zip(row.paths, row.members, strict=True):
        for index in members:
            yield index, path[spans[index].start :]


def _batches(
    spans: Sequence[Span], rows: Sequence[Row], batch_size: int, vocab_size: int
) -> Iterator[list[Row]]:
    """Rows, longest first, cut into batches of similar lengths."""
    batch: list[Row] = []
    num_places = 0
    for row in sorted(rows, key=lambda row: (-row.length, row.tokens)):
        added = len({place for _, places in _places(spans, row) for place in places})
        if batch and (
            len(batch) == batch_size
            or row.length < LEAST_FILLED * batch[0].length
            or (num_places + added) * vocab_size > MAX_LOGITS
        ):
            yield batch
            batch, num_places = [], 0
        batch.append(row)
        num_places += added
    if batch:
        yield batch


def _score_batch(
    model: PreTrainedModel, spans: Sequence[Span], rows: Sequence[Row], width: int
) -> tuple[list[float], list[bool]]:
    """Totals and greediness of the spans in ``rows``, padded to ``width``, in row order."""
    import torch

    sizes: list[int] = []
    place: list[int] = []
    target: list[int] = []
    for number, row in enumerate(rows):
        for index, places in _places(spans, row):
            sizes.append(len(places))
            place += [number * width + p for p in places]
            target += spans[index].targets
    distinct, which = _tensor(place).unique(return_inverse=True)
    logits = _logits(model, rows, width, distinct.to(model.device))
    scores = _score_places(logits, which, _tensor(target)).double().cpu()
    owner = torch.arange(len(sizes)).repeat_interleave(_tensor(sizes))
    sums = torch.zeros(2, len(sizes), dtype=torch.float64).index_add_(1, owner, scores)
    return sums[0].tolist(), [count == 0 for count in sums[1].tolist()]


def _score_places(
    logits: torch.Tensor, places: torch.Tensor, targets: torch.Tensor
) -> torch.Tensor:
    """Log-likelihood of each target, and 1 where it is not the greedy choice, shape (2, tokens).

    Args:
        logits: shape (places, vocabulary).
        places: of each target; sequences that begin alike have some in common.
        targets: tokens.
    """
    import torch

    order = places.argsort()
    parts, last = [], 0
    together = max(1, CACHED_LOGITS // logits.shape[1])
    counts = places.bincount(minlength=len(logits)).split(together)
    for part, sizes in zip(logits.split(together), counts, strict=True):
        first, last = last, last + int(sizes.sum())
        rows = torch.arange(len(part)).repeat_interleave(sizes).to(logits.device)
        wanted = targets[order[first:last]].to(logits.device)
        values = part.float().log_softmax(-1)
        scores = values[rows, wanted]
        wrong = scores < values.amax(-1)[rows]
        tied = (~wrong).nonzero()[:, 0]  # of equal maxima, the first is the greedy choice
        wrong[tied] = values[rows[tied]].argmax(-1) != wanted[tied]
        parts.append(torch.stack([scores, wrong.float()]))
    return torch.cat(parts, 1)[:, order.argsort().to(logits.device)]


def _padded(length: int) -> int:
    """The multiple of `MULTIPLE` that holds a row."""
    return -(-length // MULTIPLE) * MULTIPLE


def _tensor(values: list[int] | list[list[int]]) -> torch.Tensor:
    """Integers as a tensor; NumPy reads lists several times faster than torch does."""
    import numpy as np
    import torch

    return torch.from_numpy(np.array(values, dtype=np.int64))


def _logits(
    model: PreTrainedModel, rows: Sequence[Row], width: int, places: torch.Tensor
) -> torch.Tensor:
    """Logits at ``places`` of the rows, each ``width`` long, shape (places, vocabulary)."""

    def padded(values: Iterable[list[int]]) -> torch.Tensor:
        return _tensor([each + [0] * (width - len(each)) for each in values]).to(model.device)

    inputs = padded(row.tokens for row in rows)
    options: dict[str, Any] = {"use_cache": False}
    if any(len(row.paths) > 1 for row in rows):
        options["position_ids"] = padded(row.positions for row in rows)
        options["attention_mask"] = _mask(padded(row.ends for row in rows), model.dtype)
    head = getattr(model, "get_output_embeddings", lambda: None)()
    if head is None:
        return model(inputs, **options).logits.flatten(0, 1)[places]
    hook = head.register_forward_pre_hook(
        lambda module, hidden: (hidden[0].flatten(0, 1)[places][None],)
    )
    try:
        return model(inputs, **options).logits[0]
    finally:
        hook.remove()


def _mask(ends: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """What is added to attention scores, shape (rows, 1, longest, longest).

    Zero for a token itself and for those that it continues, else the lowest number.
    """
    import torch

    place = torch.arange(ends.shape[1], device=ends.device)
    seen = (place[:, None] < ends[:, None, :]).tril()
    lowest = torch.finfo(dtype).min
    return torch.zeros_like(seen, dtype=dtype).masked_fill_(~seen, lowest)[:, None]
