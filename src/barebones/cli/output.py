"""Output: lines of plain text for people and for pipes."""

from rich.console import Console

from ..messages import printable


def say(text: str) -> None:
    """Print a line as it is: no markup, no colours for numbers, no line breaks at the terminal's width."""
    Console(soft_wrap=True).print(printable(text), highlight=False, markup=False)
