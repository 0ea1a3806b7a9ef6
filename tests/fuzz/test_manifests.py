"""Manifests as people write them, and as they should not."""

from typing import Any

import yaml
from hypothesis import example, given
from hypothesis import strategies as st

from rekindle.model.manifest import parse
from tests.fuzz.broken import broken, fuzzed, nested, reads

MANIFEST: dict[str, Any] = {
    "apiVersion": "rekindle.io/v1",
    "kind": "TrainingJob",
    "metadata": {
        "name": "job",
        "namespace": "default",
        "labels": {"subHealthyStrategy": "hotSwitch", "framework": "pytorch"},
        "annotations": {"rekindle.io/capabilities": "watchdog"},
    },
    "spec": {
        "pods": 2,
        "ranksPerPod": 2,
        "command": ["train"],
        "env": {"A": "b"},
        "accelerators": 0,
        "manager": ["manage"],
        "trainingSide": "rekindle",
        "capabilities": ["watchdog"],
        "limits": {"pause": 60},
        "kubernetes": {"image": "training", "pod": {"affinity": {}}, "container": {}},
    },
}


class Plain(yaml.SafeDumper):
    """Writes no anchors, so that what is repeated is repeated."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


@given(document=broken(MANIFEST))
@fuzzed
def test_a_broken_manifest_is_refused_by_its_fields(document: Any) -> None:
    """Whatever is wrong with it, wherever."""
    text = yaml.dump(document, Dumper=Plain)
    reads(lambda: parse(text))


PIECES = st.sampled_from(
    (
        "apiVersion",
        "spec",
        ": ",
        "\n",
        "  ",
        "- ",
        "&a ",
        "*a",
        "[",
        "]",
        "{",
        "}",
        "'",
        '"',
        "!!int ",
        "!!binary ",
        "!!timestamp ",
        "2026-13-45",
    )
)


@given(text=st.one_of(st.text(max_size=200), st.lists(st.one_of(PIECES, st.text(max_size=5)), max_size=30).map("".join)))
@example("a: 2026-13-45")
@example("a: !!int many")
@example("a: !!timestamp never")
@example("a: !!bool perhaps")
@example("a: " + "9" * 5000)
@example("[" * 5000)
@example("a: " + str(nested(300)))
@example("&a [*a]")
@example("a: &a {a: *a}")
@example("\ud800")
@fuzzed
def test_any_text_is_refused_as_a_manifest(text: str) -> None:
    """Also what only looks like YAML."""
    reads(lambda: parse(text))
