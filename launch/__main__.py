"""`python -m launch`."""


def main() -> int:
    """The command line; an interrupt while it is imported ends it as one of a verb does."""
    try:
        from .cli.main import main as command_line

        return command_line()
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    raise SystemExit(main())
