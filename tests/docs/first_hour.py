"""Types the page of the first hour in the checkout, and shows the time of each step."""

from __future__ import annotations

import time

from tests.docs.pages import ROOT, Block, Machine, blocks, elsewhere

PAGE = ROOT / "docs/first-hour.md"


def main() -> None:
    machine = Machine(ROOT, stand_ins=False)
    first, *others = blocks(PAGE, "bash server", "bash", "python")
    assert elsewhere(first.commands[0]), "the demo and its environment, which run this"
    [(place, server)] = [row for row in enumerate(others) if row[1].kind == "bash server"]
    step(machine, others[:place])
    with machine.serving(server.text.strip()):
        step(machine, others[place + 1 :])


def step(machine: Machine, steps: list[Block]) -> None:
    for block in steps:
        begun_s = time.monotonic()
        if block.kind == "python":
            (ROOT / "client.py").write_text(block.text)
        print(machine.run("python client.py" if block.kind == "python" else block.text))
        print(f"== {time.monotonic() - begun_s:.0f} s: {block.text.splitlines()[0]}", flush=True)


if __name__ == "__main__":
    main()
