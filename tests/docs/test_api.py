"""The page of the API is made from the code, and names what programs call."""

from docs.api import PAGE, page


def test_the_page_of_the_api_is_current() -> None:
    """`make api` was run after the last change of a signature or of a docstring."""
    assert PAGE.read_text() == page(), "run `make api`"


def test_every_public_method_is_on_the_page() -> None:
    """A method without a docstring would be missing."""
    text = page()
    for call in ("connect(address", "hot_switch(job", "watch(job", "submit(described", "fail_over(job", "mark(name"):
        assert f"{call}" in text, call
