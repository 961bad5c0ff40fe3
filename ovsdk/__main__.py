"""`python -m ovsdk`."""

from .cli import main

main()
