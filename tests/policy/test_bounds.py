"""Texts and lists are cut by their bytes, where the server counts bytes."""

import json

from hypothesis import given
from hypothesis import strategies as st

from rekindle.model import bounds


@given(st.text(max_size=3000))
def test_a_text_is_cut_to_bytes_and_stays_a_text(text: str) -> None:
    """Never inside of a character; what fits is left as it is."""
    cut = bounds.summary(text)
    assert len(cut.encode()) <= bounds.SUMMARY
    assert cut == text or (cut.endswith("...") and text.startswith(cut[:-3]))


@given(st.lists(st.text(max_size=253), max_size=200))
def test_a_search_attribute_of_keywords_fits_as_it_is_sent(names: list[str]) -> None:
    """The first ones that fit, in JSON, where a character may take six bytes."""
    kept = bounds.keywords(names)
    assert kept == names[: len(kept)]
    assert len(json.dumps(kept, separators=(",", ":"))) <= 2_048


def test_of_many_their_number_and_ten_are_named() -> None:
    """The number comes first: it is there even if the text is cut."""
    names = [f"pod-{number}" for number in range(1250)]
    assert bounds.few(names[:2]) == "pod-0, pod-1"
    assert bounds.few(names) == f"1250, among them {', '.join(names[:10])}"
    assert bounds.few(names[:10], 1250) == bounds.few(names)
