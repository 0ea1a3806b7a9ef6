"""The command `rekindle`, as `python -m rekindle`."""

from rekindle.cli.start import main

main()
