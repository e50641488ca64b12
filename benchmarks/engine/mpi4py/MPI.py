"""One rank, which is the leader."""


class COMM_WORLD:
    rank = 0
