"""A link of `rekindle doctor` is one line of text, whoever chose its words."""

from rekindle.model.examined import LONGEST, failed, ok


def test_a_link_is_one_line() -> None:
    """Names of gateways come from jobs, and words from servers. Neither can look like another link, or fill a terminal."""
    link = failed("gateway a\nok      Temporal", "no\r\n\u2028yes\ud800" + "x" * 10 * LONGEST, "do\nthis")
    assert (link.name, link.mend) == ("gateway a ok      Temporal", "do this")
    assert link.words.startswith("no  yes?xxx")
    assert len(link.words.encode()) == LONGEST
    assert len(link.model_dump_json()) < 64 * 1024
    assert ok("a", "b").words == "b"
