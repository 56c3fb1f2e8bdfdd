"""The one Jinja environment."""

import re
from functools import cache

from jinja2 import Environment, PackageLoader, StrictUndefined


@cache
def environment() -> Environment:
    """The environment that every template is rendered in."""
    package = __package__.partition(".")[0]
    return Environment(
        loader=PackageLoader(package, "templates"),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        auto_reload=False,
    )


def rendered(template: str, **values: object) -> str:
    """The text of a template with these values, without trailing blanks and runs of empty lines."""
    return tidy(environment().get_template(template).render(values))


def tidy(text: str) -> str:
    """`text` without trailing blanks and runs of empty lines."""
    return re.sub(r"\n{3,}", "\n\n", re.sub(r"[ \t]+\n", "\n", text)).strip("\n") + "\n"
