"""LaTeX tables: plain tabulars that compile without packages, and look better with booktabs."""

from __future__ import annotations

from collections.abc import Sequence
from unicodedata import normalize

LONGEST = 45  # rows of a tabular, so that it fits a page
RULES = "\n".join(rf"\providecommand{{\{rule}rule}}{{\hline}}" for rule in ("top", "mid", "bottom"))
SPECIAL = {
    "\\": r"\textbackslash{}", "{": r"\{", "}": r"\}", "$": r"\$", "&": r"\&", "#": r"\#", "%": r"\%", "_": r"\_",
    "^": r"\textasciicircum{}", "~": r"\textasciitilde{}", "<": r"\textless{}", ">": r"\textgreater{}",
    "|": r"\textbar{}", '"': "''", "×": r"$\times$", "–": "--", "±": r"$\pm$", "†": r"$^\dagger$",
}  # fmt: skip


def escaped(text: str) -> str:
    r"""Return a text that LaTeX prints as it is; a letter that its default font lacks becomes a question mark.

    >>> escaped("my_net & 90 % ±1"), escaped("é, θ")
    ('my\\_net \\& 90 \\% $\\pm$1', 'é, ?')
    """
    return "".join(SPECIAL.get(letter) or (letter if _in_font(letter) else "?") for letter in text)


def _in_font(letter: str) -> bool:
    return letter <= "ÿ" and " " <= normalize("NFD", letter)[0] <= "~"


def tabular(head: Sequence[str], blocks: dict[str, list[list[str]]], note: str = "") -> str:
    """Return rows under a head as tabulars of at most a page: the first column aligned left, the others right.

    Each block has a heading of its own; a block of the heading "" has none. Rows that are short end with one cell over
    all columns that are left. The cells are plain text.
    """
    lines = []
    for title, rows in blocks.items():
        if title:
            lines += [rf"\multicolumn{{{len(head)}}}{{l}}{{\textit{{{escaped(title)}}}}}"]
        lines += [_row(row, len(head)) for row in rows]
    parts = []
    for start in range(0, len(lines), LONGEST):
        body = [r"\toprule", _row(head, len(head)) + r" \\", r"\midrule"]
        body += [line + r" \\" for line in lines[start : start + LONGEST]] + [r"\bottomrule"]
        parts.append("\n".join([rf"\begin{{tabular}}{{l{'r' * (len(head) - 1)}}}", *body, r"\end{tabular}"]))
    if note:
        parts.append(rf"{{\footnotesize {escaped(note)}}}")
    return RULES + "\n" + "\n\n".join(parts) + "\n"


def _row(cells: Sequence[str], columns: int) -> str:
    *first, last = map(escaped, cells)
    rest = columns - len(first)
    return " & ".join([*first, last if rest == 1 else rf"\multicolumn{{{rest}}}{{c}}{{{last}}}"])
