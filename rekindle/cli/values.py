"""Values of options that cyclopts reads otherwise than people mean them."""

import re
from collections.abc import Sequence
from typing import Annotated, Any

from cyclopts import Parameter, Token

WHOLE = re.compile(r"[-+]?[0-9]+", re.ASCII)


def whole(_: Any, tokens: Sequence[Token]) -> int:
    """Returns the number that a text is. By itself, cyclopts rounds 1.5 to 2."""
    if WHOLE.fullmatch(tokens[0].value) is None:
        raise ValueError(
            f"{'' if tokens[0].keyword else 'NUMBER: '}{tokens[0].value!r} is not accepted (accepted: a whole number)"
        )
    return int(tokens[0].value)


def _said(_: Any, tokens: Sequence[Token]) -> str:
    """Refuses an empty text, as of a variable of a shell that is not set. It would count as if the option were left out."""
    if not tokens[0].value.strip():
        raise ValueError("an empty text is not accepted, leave the option out")
    return tokens[0].value


Whole = Annotated[int, Parameter(converter=whole)]

Said = Annotated[str, Parameter(converter=_said)]
"""Option that means something else if it is left out."""
