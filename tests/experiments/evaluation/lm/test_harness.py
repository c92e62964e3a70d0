import copy

import pytest
import torch
import yaml
from lm_eval import utils
from lm_eval.api.instance import Instance
from lm_eval.api.model import TemplateLM

from experiments.evaluation.lm import harness_tasks as tasks
from experiments.evaluation.lm.harness import CausalLM
from experiments.evaluation.lm.scoring import Scorer
from experiments.evaluation.suite import OWN_TASKS


def requests(kind: str, arguments) -> list[Instance]:
    return [
        Instance(request_type=kind, doc={}, arguments=args, idx=0, metadata=("t", i, 1))
        for i, args in enumerate(arguments)
    ]


class Reference(TemplateLM):
    """lm-eval's own splitting of pairs, scored one row at a time."""

    def __init__(self, model, tokenizer):
        super().__init__()
        self.model, self.tokenizer = model, tokenizer

    @property
    def eot_token_id(self):
        return self.tokenizer.eos_token_id

    def tok_encode(self, string, add_special_tokens=None, **kwargs):
        return self.tokenizer.encode(string, add_special_tokens=False)

    def _loglikelihood_tokens(self, requests, **kwargs):
        results = []
        for _, context, continuation in requests:
            inputs = (context + continuation)[-33:][:-1]
            with torch.no_grad():
                logits = self.model(torch.tensor([inputs])).logits[0].double()
            rows = torch.log_softmax(logits, -1)[-len(continuation) :]
            greedy = rows.argmax(-1).tolist() == continuation
            results.append((float(rows[range(len(rows)), continuation].sum()), greedy))
        return results

    def loglikelihood_rolling(self, requests, disable_tqdm=False):
        raise NotImplementedError

    def generate_until(self, requests, disable_tqdm=False):
        raise NotImplementedError


PAIRS = [
    ("The mask", " drops every weight."),
    ("The mask ", "drops every weight."),
    ("", "The layer often scores."),
    ("", " The layer often scores."),
    ("", "<|endoftext|>The token"),
    ("The mask", " grows"),
    ("The mask", " x"),
    ("The mask always drops every small weight of the layer. " * 6, " The tensor"),
]


def test_loglikelihood_equals_lm_evals_own_splitting(scorer, model, tokenizer):
    lm = CausalLM(scorer)
    ours = lm.loglikelihood(requests("loglikelihood", PAIRS))
    theirs = Reference(model, tokenizer).loglikelihood(
        requests("loglikelihood", PAIRS), disable_tqdm=True
    )
    assert [greedy for _, greedy in ours] == [greedy for _, greedy in theirs]
    assert [nats for nats, _ in ours] == pytest.approx([nats for nats, _ in theirs], rel=1e-5)
    assert (lm.num_requests, lm.num_truncated) == (len(PAIRS), 1)


def test_rolling_adds_up_to_the_whole_text(scorer, model):
    text = "The mask always drops every small weight of the layer. " * 8
    tokens = scorer.encode([text])[0]
    total = 0.0
    stream = [scorer.prefix, *tokens]
    for begin in range(0, len(tokens) - 32, 32):
        chunk = stream[begin : begin + 33]
        with torch.no_grad():
            rows = torch.log_softmax(model(torch.tensor([chunk[:-1]])).logits[0].double(), -1)
        total += float(rows[range(32), chunk[1:]].sum())
    rest = (len(tokens) - 1) % 32 + 1
    chunk = stream[-33:]
    with torch.no_grad():
        rows = torch.log_softmax(model(torch.tensor([chunk[:-1]])).logits[0].double(), -1)
    total += float(rows[range(32), chunk[1:]][-rest:].sum())
    lm = CausalLM(scorer)
    assert lm.loglikelihood_rolling(requests("loglikelihood_rolling", [(text,)])) == pytest.approx(
        [total], rel=1e-6
    )
    assert lm.num_truncated == 0


def greedy_text(model, tokenizer, prompt: str, num: int) -> str:
    tokens = tokenizer.encode(prompt, add_special_tokens=False)
    start = len(tokens)
    for _ in range(num):
        with torch.no_grad():
            tokens.append(int(model(torch.tensor([tokens])).logits[0, -1].argmax()))
    return tokenizer.decode(tokens[start:])


def test_generation_equals_the_uncached_loop(scorer, model, tokenizer):
    prompts = ["The mask", "The layer", "The schedule often counts"]
    options = {"until": [], "max_gen_toks": 6}
    arguments = [(prompt, options) for prompt in prompts]
    texts = CausalLM(scorer).generate_until(requests("generate_until", arguments))
    for prompt, text in zip(prompts, texts, strict=True):
        expected = greedy_text(model, tokenizer, prompt, 6)
        assert text == expected.split("<|endoftext|>")[0]


def beam_text(model, tokenizer, prompt: str, num: int, beams: int) -> str:
    """The likeliest of all texts that beam search without a cache keeps, ends not looked at."""
    start = tokenizer.encode(prompt, add_special_tokens=False)
    rows = [(0.0, start)]
    for _ in range(num):
        found = []
        for total, tokens in rows:
            with torch.no_grad():
                scores = model(torch.tensor([tokens])).logits[0, -1].log_softmax(-1)
            found += [(total + float(s), [*tokens, i]) for i, s in enumerate(scores)]
        rows = sorted(found, reverse=True)[:beams]
    return tokenizer.decode(rows[0][1][len(start) :])


def test_beam_search_equals_the_uncached_one(scorer, model, tokenizer):
    tokenizer = copy.deepcopy(tokenizer)
    tokenizer.eos_token = None  # no text ends early
    prompts = ["The mask", "The layer", "The schedule often counts"]
    options = {"until": [], "max_gen_toks": 5, "num_beams": 3}
    lm = CausalLM(Scorer(model, tokenizer, batch_size=4))
    lm.scorer.prefix = 0
    texts = lm.generate_until(requests("generate_until", [(p, options) for p in prompts]))
    assert texts == [beam_text(model, tokenizer, prompt, 5, 3) for prompt in prompts]
    assert texts != [greedy_text(model, tokenizer, prompt, 5) for prompt in prompts]


@pytest.mark.parametrize("num_beams", [0, 2.5, True])
def test_beams_are_counted(scorer, num_beams):
    options = {"num_beams": num_beams}
    with pytest.raises(ValueError, match="num_beams"):
        CausalLM(scorer).generate_until(requests("generate_until", [("The mask", options)]))


def test_generation_stops_before_the_stop_string(scorer, model, tokenizer):
    whole = greedy_text(model, tokenizer, "The mask", 8)
    stop = whole[3:5]
    options = {"until": [stop], "max_gen_toks": 8}
    text = CausalLM(scorer).generate_until(requests("generate_until", [("The mask", options)]))
    assert text == [whole[: whole.index(stop)]]


def test_long_prompts_are_cut_on_the_left_and_counted(scorer):
    lm = CausalLM(scorer)
    prompt = "The mask always drops every small weight. " * 10
    fed = []
    hook = scorer.model.register_forward_pre_hook(
        lambda _, args, options: fed.append(options["input_ids"].tolist()), with_kwargs=True
    )
    try:
        lm.generate_until(requests("generate_until", [(prompt, {"max_gen_toks": 4})]))
    finally:
        hook.remove()
    assert (lm.num_requests, lm.num_truncated) == (1, 1)
    assert fed[0] == [scorer.encode([prompt])[0][-28:]]


@pytest.mark.parametrize("options", [{"do_sample": True}, {"temperature": 0.5}])
def test_sampling_is_refused(scorer, options):
    with pytest.raises(ValueError, match="do_sample"):
        CausalLM(scorer).generate_until(requests("generate_until", [("The mask", options)]))


@pytest.mark.parametrize(("num_tokens", "num_truncated"), [(33, 0), (34, 1)])
def test_a_prompt_is_cut_where_it_no_longer_fits(scorer, num_tokens, num_truncated):
    """The last token is predicted, not fed, so a context of 32 holds 33."""
    words = "The mask always drops every small weight of the layer. " * 9
    tokens = scorer.encode([words])[0][:num_tokens]
    text = scorer.tokenizer.decode(tokens)
    assert len(scorer.encode([text])[0]) == num_tokens
    lm = CausalLM(scorer)
    head = scorer.tokenizer.decode(tokens[:20])
    lm.loglikelihood(requests("loglikelihood", [(head, text[len(head) :])]))
    assert lm.num_truncated == num_truncated


def test_generation_ends_with_the_document(scorer, model, tokenizer):
    """Whatever is likeliest at first is declared the end of the document."""
    other = copy.deepcopy(tokenizer)
    other.eos_token = greedy_text(model, tokenizer, "The mask", 1)
    lm = CausalLM(Scorer(model, other, batch_size=4))
    options = {"until": [], "max_gen_toks": 6}
    assert lm.generate_until(requests("generate_until", [("The mask", options)])) == [""]


def test_a_written_sentence_is_exact_with_the_space_that_words_end_in():
    from lm_eval.api.metrics import exact_match_hf_evaluate

    task = yaml.safe_load((OWN_TASKS / "facts_to_text.yaml").read_text())
    (options,) = [entry for entry in task["metric_list"] if entry["metric"] == "exact_match"]
    ignored = options["regexes_to_ignore"]
    for text, right in (("the cats see ", 1.0), ("the cats see", 1.0), ("the cat sees ", 0.0)):
        found = exact_match_hf_evaluate([text], ["the cats see"], regexes_to_ignore=ignored)
        assert found["exact_match"] == right


def test_templates_are_compiled_once_and_stay_strict():
    from jinja2 import UndefinedError

    tasks._compile_templates_once()
    tasks._compile_templates_once()
    compiled = utils.env.from_string
    before = compiled.cache_info().misses
    template = "Question: {{question}}\nAnswer:"
    for word in ("one", "two"):
        assert utils.apply_template(template, {"question": word}) == f"Question: {word}\nAnswer:"
    assert compiled.cache_info().misses == before + 1
    with pytest.raises(UndefinedError):
        utils.apply_template(template, {})


def test_items_whose_choices_encode_alike_are_counted(scorer):
    """A vocabulary that lacks two words makes one choice of them."""
    lm = CausalLM(scorer)
    choices = [
        ("The mask", " grows"),
        ("The mask", " x"),
        ("The mask", " grows"),
        ("The mask", " grows"),
    ]
    asked = [
        Instance(request_type="loglikelihood", doc={}, arguments=pair, idx=i % 2,
                 metadata=("t", i // 2, 1))
        for i, pair in enumerate(choices)
    ]  # fmt: skip
    lm.loglikelihood(asked)
    assert (lm.num_choices, lm.num_alike) == (2, 1)


class Choices:
    """What is read of a task of lm-eval with several choices."""

    OUTPUT_TYPE = "multiple_choice"

    def __init__(self, *places):
        self.instances = [
            Instance(request_type="loglikelihood", doc={"gold": place}, arguments=("", ""), idx=idx,
                     metadata=("t", number, 1))
            for number, place in enumerate(places)
            for idx in range(2)
        ]  # fmt: skip

    @staticmethod
    def doc_to_target(document):
        return document["gold"]


def test_a_right_answer_always_in_one_place_is_named():
    assert tasks._answer_places(Choices(0, 0, 0)) == 1
    assert tasks._answer_places(Choices(0, 1, 1, 1)) == 0.75
    assert tasks._answer_places(Choices("text")) is None
