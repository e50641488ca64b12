"""What maintainers run on a checkout; none of it is part of the installed toolkit."""
