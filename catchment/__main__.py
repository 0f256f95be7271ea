"""`python -m catchment`."""

from catchment.cli import main

main()
