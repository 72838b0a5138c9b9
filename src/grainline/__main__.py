"""`python -m grainline` is the `grainline` command."""

from grainline.tools.main import main

main()
