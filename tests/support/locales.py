"""Build locales with currencies, because a machine may have none but C."""

import subprocess
from pathlib import Path

_ASCII = "".join(f"<U{code:04X}> /x{code:02x}\n" for code in range(128))
_CHARACTERS = f"<code_set_name> ANSI_X3.4-1968\n<comment_char> %\n<escape_char> /\nCHARMAP\n{_ASCII}END CHARMAP\n"
_MONEY = """comment_char %
escape_char /
LC_MONETARY
int_curr_symbol   "XXX "
currency_symbol   "{symbol}"
mon_decimal_point ","
mon_thousands_sep "."
mon_grouping      3;3
positive_sign     ""
negative_sign     "-"
int_frac_digits   {digits}
frac_digits       {digits}
p_cs_precedes     0
p_sep_by_space    1
n_cs_precedes     0
n_sep_by_space    1
p_sign_posn       1
n_sign_posn       1
END LC_MONETARY
"""


def make_currency(directory: Path, name: str, *, symbol: str, digits: int) -> None:
    """Build a locale in the directory, which a process finds by LOCPATH: 1.234,50 E, or without digits 1.235 Y."""
    characters, source = directory / "characters", directory / f"{name}.source"
    characters.write_text(_CHARACTERS)
    source.write_text(_MONEY.format(symbol=symbol, digits=digits))
    # It warns of missing categories, and then exits with 1.
    command = ["localedef", "--force", "--quiet", "-f", str(characters), "-i", str(source), str(directory / name)]
    made = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (directory / name / "LC_MONETARY").exists(), made.stderr
