"""Values that a parameter accepts. Each kind of values knows what is wrong with a value, and its JSON schema."""

import re
from dataclasses import dataclass
from typing import Any, Protocol

from rekindle.model.bounds import cut
from rekindle.model.problems import did_you_mean

SECONDS = re.compile(r"[0-9]{1,9}(\.[0-9]{1,9})?", re.ASCII)

YAML_WORDS = {"yes": "on", "true": "on", "no": "off", "false": "off"}
"""Words for truth values that mean `on` or `off`."""

LONGEST_MENDED = 500
"""Maximum length of a value for which another one is proposed."""

QUOTED = 80
"""Maximum number of bytes of a wrong value in a message."""


class Values(Protocol):
    @property
    def accepted(self) -> str:
        """Description of the accepted values, as people read it."""

    @property
    def schema(self) -> dict[str, Any]:
        """JSON schema of a value, which is a string in labels, annotations and variables."""

    def problem(self, value: str) -> str:
        """Returns what is wrong with a value. Empty: nothing is."""

    def mended(self, value: str) -> str:
        """Returns the value that was probably meant. Empty: that is unknown."""


@dataclass(frozen=True)
class Words:
    """Word out of several."""

    words: tuple[str, ...]

    @property
    def accepted(self) -> str:
        return ", ".join(word or "an empty value" for word in self.words)

    @property
    def schema(self) -> dict[str, Any]:
        return {"enum": list(self.words)}

    def problem(self, value: str) -> str:
        return "" if value in self.words else f"{quoted(value)} is not accepted"

    def mended(self, value: str) -> str:
        if len(value) > LONGEST_MENDED:
            return ""
        plain = YAML_WORDS.get(value.strip().lower(), value.strip())
        same = (word for word in self.words if word and word.lower() == plain.lower())
        return next(same, "") or next((word for word in self.words if did_you_mean(plain, [word])), "")


@dataclass(frozen=True)
class WordList:
    """Words separated by commas, without blanks: a component that reads them trims none."""

    words: tuple[str, ...]
    brackets: tuple[str, str] = ("", "")
    """Text before the first word and after the last one."""

    @property
    def accepted(self) -> str:
        before, after = self.brackets
        return f"{before}WORD,WORD{after} without blanks, of {', '.join(self.words)}"

    @property
    def schema(self) -> dict[str, Any]:
        before, after = map(re.escape, self.brackets)
        word = f"({'|'.join(map(re.escape, self.words))})"
        return {"type": "string", "pattern": f"^{before}({word}(,{word})*)?{after}$"}

    def problem(self, value: str) -> str:
        before, after = self.brackets
        if not (value.startswith(before) and value.endswith(after)) or len(value) < len(before) + len(after):
            return f"{quoted(value)} is not accepted: it begins with {before} and ends with {after}"
        words = self.split(value)
        if spaced := next((word for word in words if word != word.strip()), None):
            return f"{quoted(spaced)} has a blank, so that the word is ignored"
        if unknown := next((word for word in words if word not in self.words), None):
            return f"{quoted(unknown)} is not accepted, and ignored"
        if "" in words:
            return f"{quoted(value)} has an empty word"
        twice = next((word for number, word in enumerate(words) if word in words[:number]), None)
        return f"{quoted(twice)} is there twice" if twice else ""

    def split(self, value: str) -> list[str]:
        before, after = self.brackets
        inside = value.removeprefix(before).removesuffix(after)
        return inside.split(",") if inside else []

    def mended(self, value: str) -> str:
        if len(value) > LONGEST_MENDED:
            return ""
        before, after = self.brackets
        meant = [Words(self.words).mended(word) for word in re.split(r"[,;\s]+", value.strip(before + after + " ")) if word]
        return before + ",".join(dict.fromkeys(meant)) + after if meant and all(meant) else ""


@dataclass(frozen=True)
class Number:
    """Integer within bounds."""

    least: int
    most: int
    unit: str = ""

    @property
    def accepted(self) -> str:
        return f"{self.least} to {self.most}{self.unit and f' {self.unit}'}"

    @property
    def schema(self) -> dict[str, Any]:
        return {"type": "string", "pattern": "^[0-9]+$", "description": self.accepted}

    def problem(self, value: str) -> str:
        is_number = re.fullmatch(r"[0-9]{1,18}", value, re.ASCII) is not None
        if not is_number:
            return f"{quoted(value)} is not accepted"
        return "" if self.least <= int(value) <= self.most else f"{value} is out of range"

    def mended(self, value: str) -> str:
        found = re.fullmatch(r"([0-9]{1,18}) ?(s|sec|seconds)?", cut(value, QUOTED).strip(), re.ASCII)
        return str(min(max(int(found[1]), self.least), self.most)) if found else ""


@dataclass(frozen=True)
class Timed:
    """Entries separated by commas, each with the seconds for which it holds: `8C084E00:120,81078603`."""

    most: int
    usual: int
    """Seconds of an entry that names none."""

    @property
    def accepted(self) -> str:
        return f"ENTRY:SECONDS,ENTRY with at most {self.most} s, {self.usual} s where none are given"

    @property
    def schema(self) -> dict[str, Any]:
        return {"type": "string", "pattern": "^[^,:]+(:[0-9]+)?(,[^,:]+(:[0-9]+)?)*$"}

    def problem(self, value: str) -> str:
        for entry in value.split(","):
            found = re.fullmatch(r"[^,:\s]+(?::([0-9]{1,18}))?", entry, re.ASCII)
            if found is None:
                return f"{quoted(entry)} is not accepted"
            if found[1] and int(found[1]) > self.most:
                return f"{quoted(entry)}: {found[1]} s are too many"
        return ""

    def mended(self, value: str) -> str:
        joined = ",".join(entry.strip() for entry in value.split(",") if entry.strip())
        return joined if joined != value and not self.problem(joined) else ""


@dataclass(frozen=True)
class Seconds:
    """A number of seconds above 0, which may have a fraction."""

    accepted: str = "a number of seconds above 0"

    @property
    def schema(self) -> dict[str, Any]:
        return {"type": "string", "pattern": SECONDS.pattern}

    def problem(self, value: str) -> str:
        is_one = SECONDS.fullmatch(value) is not None and float(value) > 0
        return "" if is_one else f"{quoted(value)} is not accepted"

    def mended(self, value: str) -> str:
        return ""


@dataclass(frozen=True)
class Present:
    """A flag without a value."""

    accepted: str = "no value"

    @property
    def schema(self) -> dict[str, Any]:
        return {"const": ""}

    def problem(self, value: str) -> str:
        return f"{quoted(value)} follows it, and it has no value" if value else ""

    def mended(self, value: str) -> str:
        return ""


def quoted(value: str) -> str:
    return repr(cut(value, QUOTED))
