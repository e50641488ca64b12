import os


class Communicator:
    def Get_size(self) -> int:
        return int(os.environ["ENGINE_WORLD"])

    def Get_rank(self) -> int:
        return int(os.environ["ENGINE_RANK"])


COMM_WORLD = Communicator()
