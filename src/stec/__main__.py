"""`python -m stec` is `stec`."""

from stec.cli import main

main()
