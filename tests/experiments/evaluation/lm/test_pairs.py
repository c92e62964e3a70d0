from experiments.evaluation.lm.tasks.prose_pairs import prose_pairs, sentences, swap

TEXT = (
    "A heading\n\nThe small model learns to read every long document quickly. It does not. "
    "Numbers such as 42 are\nleft out of this rather short sentence. Returns x_1 for all of the "
    "given weights and masks.\n\nThis sentence goes over a line\nbreak and is still one sentence."
)


def test_sentences_are_plain_swaps_fixed_and_pairs_of_any_order_the_same():
    assert list(sentences([TEXT])) == [
        "The small model learns to read every long document quickly.",
        "This sentence goes over a line break and is still one sentence.",
    ]
    assert swap("The small model learns to read every long document quickly.") == (
        "The small learns model to read every long document quickly."
    )
    assert swap("Torch, NumPy, SciPy, Pandas, Dask, Ray.") is None
    assert swap("He had had Had had, Had.") is None
    other = "Another document says that masks are updated after each of the steps."
    pairs = prose_pairs([TEXT, other, TEXT])
    assert pairs == prose_pairs([other, TEXT])
    assert len(pairs) == 3
    assert all(pair["good"] != pair["bad"] for pair in pairs)
    assert {pair["kind"] for pair in pairs} == {"word order"}
