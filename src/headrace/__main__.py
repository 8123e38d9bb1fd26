"""`python -m headrace` is the same program as `headrace`."""

from headrace.cli import main

if __name__ == "__main__":
    main()
