"""Claims of a token are compared with the pods of a job, to decide whether a caller may be one of them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rekindle.errors import BadInput
from rekindle.model.senders import Caller, Proof, Speakers
from rekindle.model.training_side import TrainingSide
from rekindle.policy.caller_proof import LONGEST_TOKEN, caller_of, claims_of, problem_of, token_of
from tests.kubernetes.world.service_account_tokens import claims_of_pod, unsigned

OURS = Speakers(TrainingSide.REKINDLE, frozenset({"uid"}), frozenset({"10.0.0.1"}))
GOOD = caller_of("10.0.0.1", unsigned(claims_of_pod("uid")))


def test_a_token_says_its_pod_and_for_whom_it_is() -> None:
    """The claims are read as Kubernetes writes them. A single audience may be a text."""
    assert claims_of(unsigned(claims_of_pod("uid"))).pod == "uid"
    alone = claims_of_pod("uid") | {"aud": "rekindle-gateway"}
    assert claims_of(unsigned(alone)).audiences == ("rekindle-gateway",)


@pytest.mark.parametrize(
    "claims",
    [
        [],
        None,
        "text",
        {},
        {"aud": ["rekindle-gateway"], "exp": 1},
        claims_of_pod("uid") | {"exp": "soon"},
        claims_of_pod("uid") | {"exp": None},
        claims_of_pod("uid") | {"aud": None},
        claims_of_pod("uid") | {"aud": 7},
        claims_of_pod("uid") | {"kubernetes.io": {"pod": "uid"}},
        claims_of_pod("uid") | {"kubernetes.io": {"serviceaccount": {"name": "default"}}},
        claims_of_pod("uid", audience="https://kubernetes.default.svc"),
        claims_of_pod("uid", audience="half of a letter: \ud800"),
        claims_of_pod("uid", audience="two\nlines of a log"),
        claims_of_pod("\ud800"),
    ],
)
def test_a_token_of_another_shape_is_named_so(claims: object) -> None:
    """The message can be sent and logged, whatever the token contains."""
    with pytest.raises(BadInput, match="the token is") as refused:
        claims_of(unsigned(claims))
    assert str(refused.value).isprintable()


@given(st.text(max_size=200) | st.text("abcdefgh.-_=", max_size=200))
def test_no_text_breaks_the_reader(text: str) -> None:
    """Any text is read as a caller without claims, and raises nothing."""
    assert caller_of("10.0.0.1", text).claims is None


def test_what_lies_deep_or_is_long_is_bad_input() -> None:
    """A token that is too long or deeply nested is refused."""
    assert "accepted are at most" in caller_of("", "a" * (LONGEST_TOKEN + 1)).wrong
    deep = "W" * 3000
    assert caller_of("", f"a.{deep}.c").claims is None


@pytest.mark.parametrize(
    ("proof", "caller", "words", "may_pass"),
    [
        (Proof.TOKEN, GOOD, "", False),
        (Proof.TOKEN, Caller("10.0.0.1"), "no token came with the call", False),
        (Proof.TOKEN, caller_of("10.0.0.1", "garbage"), "none that Kubernetes makes", False),
        (Proof.TOKEN, caller_of("10.0.0.1", unsigned(claims_of_pod("other"))), "none of this job", True),
        (Proof.ADDRESS, Caller("10.0.0.1"), "", False),
        (Proof.ADDRESS, Caller("10.0.0.2"), "no pod of this job has the address 10.0.0.2", True),
        (Proof.ADDRESS, caller_of("10.0.0.2", unsigned(claims_of_pod("uid"))), "no pod of this job has the address", True),
        (Proof.ANYBODY, Caller("10.0.0.2"), "", False),
        (Proof.NOBODY, GOOD, "no sender is accepted for jobs of rekindle here", False),
    ],
)
def test_what_is_wrong_with_a_caller(proof: Proof, caller: Caller, words: str, may_pass: bool) -> None:
    """The problem has a text, and says whether another look may show more."""
    problem = problem_of(caller, OURS, proof)
    assert words in (problem.words if problem else "")
    assert bool(problem) == bool(words)
    assert (problem.may_pass if problem else False) is may_pass


def test_for_a_job_that_nobody_knows_nobody_speaks() -> None:
    """An unknown job has no callers until a look shows it."""
    problem = problem_of(GOOD, None, Proof.TOKEN)
    assert problem
    assert problem.may_pass


@pytest.mark.parametrize(
    ("said", "token"),
    [
        ([], ""),
        (["Bearer a.b.c"], "a.b.c"),
        (["bearer  a.b.c "], "a.b.c"),
        (["a.b.c"], ""),
        (["Basic a"], ""),
        (["Bearer a", "Bearer b"], ""),
        ([b"Bearer a"], ""),
        (["Bearer"], ""),
    ],
)
def test_a_token_is_read_from_one_header(said: list[str | bytes], token: str) -> None:
    """Two headers count as none, since either could be meant."""
    assert token_of(said) == token
