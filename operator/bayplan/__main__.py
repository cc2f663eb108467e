"""`python -m bayplan`: the command without an installed script."""

from bayplan.cli.main import main

main()
