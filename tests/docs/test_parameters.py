"""The page of parameters is made from the code."""

from docs.parameters import PAGE, page


def test_the_page_of_parameters_is_current() -> None:
    """`make parameters` was run after the last change of a parameter or of a table."""
    assert PAGE.read_text() == page(), "run `make parameters`"
