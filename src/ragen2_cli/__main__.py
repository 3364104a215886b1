"""``python -m ragen2_cli``: the same as the ``ragen2`` command."""

from ragen2_cli.app import main

if __name__ == "__main__":
    main()
