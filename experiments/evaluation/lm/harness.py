"""Our models behind lm-eval's interface: batched, sorted by length, no launcher.

Equal to lm-eval's own ``HFLM`` on the same weights, without its dependency on accelerate.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from lm_eval.api.model import LM

from experiments.errors import UserError
from experiments.evaluation.lm.generation import continuations
from experiments.evaluation.lm.perplexity import windows
from experiments.evaluation.lm.scoring import Scorer, Span
from experiments.memory import uncollected

if TYPE_CHECKING:
    from lm_eval.api.instance import Instance


class CausalLM(LM):
    """A transformers causal model as lm-eval wants it.

    Args:
        scorer: the model with its tokenizer.

    Attributes:
        num_requests: scored requests so far.
        num_choices: items with several choices.
        num_alike: those of them of which two choices have the same tokens, which no model tells
            apart.
        num_truncated: those of which the context window cut off some tokens.
    """

    def __init__(self, scorer: Scorer) -> None:
        super().__init__()
        self.scorer = scorer
        self.num_requests = 0
        self.num_truncated = 0
        #: Items with several choices, and those of them with two choices of the same tokens.
        self.num_choices = 0
        self.num_alike = 0
        self._before = scorer.num_encoded, scorer.num_unknown
        self._device = scorer.model.device

    @property
    def unknown_fraction(self) -> float:
        """Share of the requests' tokens for which the vocabulary lacks the text."""
        encoded, unknown = self._before
        return (self.scorer.num_unknown - unknown) / max(1, self.scorer.num_encoded - encoded)

    @uncollected()
    def loglikelihood(self, requests: list[Instance]) -> list[tuple[float, bool]]:
        """Log-likelihood (nats) and greediness of each (context, continuation)."""
        pairs = self._encode_pairs([request.args for request in requests])
        spans = [self._span(*pair) for pair in pairs]
        choices: dict[Any, list[Span]] = {}
        for request, span in zip(requests, spans, strict=True):
            choices.setdefault((request.task_name, request.doc_id), []).append(span)
        several = [own for own in choices.values() if len(own) > 1]
        self.num_choices += len(several)
        self.num_alike += sum(len(set(own)) < len(own) for own in several)
        return self.scorer.score(spans)

    @uncollected()
    def loglikelihood_rolling(self, requests: list[Instance]) -> list[float]:
        """Log-likelihood (nats) of whole texts, in windows that score each token once."""
        context = self.scorer.context
        encoded = self.scorer.encode([request.args[0] for request in requests])
        spans: list[Span] = []
        owner: list[int] = []
        for index, tokens in enumerate(encoded):
            cut = windows(tokens, prefix=self.scorer.prefix, context=context, stride=context)
            for span in cut:
                spans.append(span)
                owner.append(index)
        totals = [0.0] * len(requests)
        for index, (nats, _) in zip(owner, self.scorer.score(spans), strict=True):
            totals[index] += nats
        self.num_requests += len(requests)
        return totals

    @uncollected()
    def generate_until(self, requests: list[Instance]) -> list[str]:
        """Likeliest continuations, cut before the first stop string.

        A prompt keeps its last ``context - max_gen_toks`` tokens. ``num_beams`` above 1 asks for
        beam search.

        Raises:
            ValueError: if a request asks for sampling.
        """
        prompts = self.scorer.encode([request.args[0] for request in requests])
        groups: dict[tuple[int, tuple[str, ...], int], list[int]] = {}
        for index, (prompt, request) in enumerate(zip(prompts, requests, strict=True)):
            limit, stops, num_beams = self._generation_options(request.args[1])
            room = max(1, self.scorer.context - limit)
            self.num_requests += 1
            self.num_truncated += len(prompt) > room
            prompts[index] = (prompt or [self.scorer.prefix])[-room:]
            groups.setdefault((limit, stops, num_beams), []).append(index)
        texts = [""] * len(requests)
        for (limit, stops, num_beams), members in groups.items():
            chosen = [prompts[index] for index in members]
            found = continuations(
                self.scorer, chosen, limit=limit, stops=stops, num_beams=num_beams
            )
            for index, text in zip(members, found, strict=True):
                texts[index] = text
        return texts

    def _encode_pairs(self, pairs: Sequence[tuple[str, str]]) -> list[tuple[list[int], list[int]]]:
        """Context and continuation tokens, as lm-eval defines the border between them.

        The pair is encoded as one text and cut after as many tokens as the context alone has;
        the context's trailing spaces go to the continuation. An empty context is the prefix.
        """
        moved = []
        for context, continuation in pairs:
            stripped = context.rstrip()
            moved.append((stripped, context[len(stripped) :] + continuation))
        distinct = list({context for context, _ in moved})
        lengths = dict(zip(distinct, map(len, self.scorer.encode(distinct)), strict=True))
        wholes = self.scorer.encode([context + rest for context, rest in moved])
        encoded = []
        for (context, _), whole in zip(moved, wholes, strict=True):
            cut = lengths[context]
            if cut:
                encoded.append((whole[:cut], whole[cut:]))
            elif whole[:1] == [self.scorer.prefix]:
                encoded.append((whole[:1], whole[1:]))
            else:
                encoded.append(([self.scorer.prefix], whole))
        return encoded

    def _span(self, context: list[int], continuation: list[int]) -> Span:
        """The span to score, its left end cut to what the model takes."""
        whole = context + continuation
        inputs = whole[-(self.scorer.context + 1) : -1]
        self.num_requests += 1
        self.num_truncated += len(whole) - 1 > self.scorer.context
        return Span(tuple(inputs), tuple(continuation[-len(inputs) :]) if continuation else ())

    def _generation_options(self, options: dict[str, Any]) -> tuple[int, tuple[str, ...], int]:
        """Token limit, stop strings and number of beams of a request."""
        if options.get("do_sample") or options.get("temperature", 0) > 0:
            raise UserError("do_sample is true; only greedy and beam search are supported")
        num_beams = options.get("num_beams", 1)
        if type(num_beams) is not int or num_beams < 1:
            raise UserError(f"num_beams is {num_beams!r}; it must be a whole number from 1")
        until = options.get("until") or ()
        stops = (until,) if isinstance(until, str) else tuple(until)
        if self.scorer.tokenizer.eos_token:
            stops += (self.scorer.tokenizer.eos_token,)
        limit = int(options.get("max_gen_toks", 256))
        return min(limit, self.scorer.context - 1), stops, num_beams
