"""`python -m barebones` is the command `barebones`."""

from barebones.cli import main

if __name__ == "__main__":
    main()
