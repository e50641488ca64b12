"""What a script puts in for its variables, as far as it says so itself; the rest is variable."""

from __future__ import annotations

from pathlib import Path

import pytest

from builder import lint, pipeline
from builder.lint.model import Word
from builder.lint.read import shell, shell_files
from builder.lint.read.commands import in_script

# A script before a server's command, the words of that command, and those that the shell makes.
RESOLVED: dict[str, tuple[str, str, list[str]]] = {
    "a variable": ("TP=8\n", "--tp $TP", ["--tp", "8"]),
    "one that is exported": ("export TP=8\n", "--tp ${TP}", ["--tp", "8"]),
    "one of a Dockerfile": ("ENV TP=8\n", "--tp $TP", ["--tp", "8"]),
    "a default": ("", "--tp ${TP:-8}", ["--tp", "8"]),
    "a default without a colon": ("", "--tp ${TP-8}", ["--tp", "8"]),
    "a default of itself": ("TP=${TP:-8}\n", "--tp $TP", ["--tp", "8"]),
    "a default of an argument": ("TP=${1:-8}\n", "--tp $TP", ["--tp", "8"]),
    "a default that is set": (': "${TP:=8}"\n', "--tp $TP", ["--tp", "8"]),
    "a default that another variable is": ("N=8\n", "--tp ${TP:-$N}", ["--tp", "8"]),
    "a value and its default": ("TP=4\n", "--tp ${TP:-8}", ["--tp", "4"]),
    "an empty value and its default": ("TP=\n", "--tp ${TP:-8}", ["--tp", "8"]),
    "a sum": ("TP=4\nPP=2\n", "--tp $((TP * PP))", ["--tp", "8"]),
    "a sum that is divided": ("N=9\n", "--tp $(($N / 2))", ["--tp", "4"]),
    "a text of several words": ('MORE="--tp 8 --ep 8"\n', "$MORE", ["--tp", "8", "--ep", "8"]),
    "a text that is added to": (
        'MORE="--tp 8"\nMORE="$MORE --ep 8"\nMORE+=" --pp 1"\n',
        *("$MORE", ["--tp", "8", "--ep", "8", "--pp", "1"]),
    ),
    "a list": ("A=(--tp 8)\n", '"${A[@]}"', ["--tp", "8"]),
    "a list on several lines": (
        'TP=8\nA=(\n  --tp "$TP"\n  --ep 8\n)\n',
        *('"${A[@]}"', ["--tp", "8", "--ep", "8"]),
    ),
    "a list that begins empty": ("A=()\nA+=(--tp 8)\n", '"${A[@]}"', ["--tp", "8"]),
    "a list of lists": (
        'A=(--tp 8)\nB=("${A[@]}" --ep 8)\n',
        '"${B[@]}"',
        ["--tp", "8", "--ep", "8"],
    ),
    "two values of one variable": ("TP=4\nTP=8\n", "--tp $TP", ["--tp", "$TP"]),
    "a variable that is read": ("TP=4\nread TP\n", "--tp $TP", ["--tp", "$TP"]),
    "a variable of a loop": ("for TP in 4 8; do\n", "--tp $TP", ["--tp", "$TP"]),
    "an argument": ("TP=$1\n", "--tp $TP", ["--tp", "$1"]),
    "what a command prints": ("TP=$(nvidia-smi -L | wc -l)\n", "--tp $TP", ["--tp", "$TP"]),
    "all arguments": ("", '"$@"', ["$@"]),
    "a list with two beginnings": ("A=(--tp 4)\nA=(--tp 8)\n", '"${A[@]}"', ["${A[@]}"]),
    "a list of itself": ('A=("${A[@]}" --tp 8)\n', '"${A[@]}"', ["${A[@]}", "--tp", "8"]),
    "a variable of itself": ("TP=$TP$TP\n", "--tp $TP", ["--tp", "$TP"]),
    "an alternative": ("TP=8\n", "--tp ${TP:+4}", ["--tp", "${TP:+4}"]),
    "a text in single quotes": ("TP=8\n", "--tp '$TP'", ["--tp", "$TP"]),
    "a sum of an unknown number": (
        "N=$((SLURM_NNODES - 1))\nM=$((N * 4))\n",
        *("--tp $M", ["--tp", "$M"]),
    ),
    "a default of what Slurm sets": (
        "N=$((${SLURM_NNODES:-2} - 1))\n",
        *("--tp $N", ["--tp", "$N"]),
    ),
    "brackets in a sum": ("N=3\n", "--tp $(( (N + 1) * (1 + (1)) ))", ["--tp", "8"]),
    "a sum in a variable": ("A=3-1\n", "--tp $((A * 4))", ["--tp", "8"]),
    "a text in a sum": ("A=3-1\n", "--tp $(($A * 4))", ["--tp", "-1"]),
    "a number of eight digits a place": ("A=010\n", "--tp $((A))", ["--tp", "8"]),
    "a quotient below zero": ("", "--tp $((-7 / 2))", ["--tp", "-3"]),
    "a rest below zero": ("", "--tp $((-7 % 3))", ["--tp", "-1"]),
    "a shifted number": ("", "--tp $((1 << 3))", ["--tp", "8"]),
    "a power": ("", "--tp $((2 ** 3))", ["--tp", "$((2 ** 3))"]),
    "a comparison": ("A=3\n", "--tp $((A > 2))", ["--tp", "$((A > 2))"]),
    "what wraps around": ("", "--tp $((2147483647 + 1))", ["--tp", "$((2147483647 + 1))"]),
    "a variable that is counted": ("N=4\n((N++))\n", "--tp $N", ["--tp", "$N"]),
    "one that is added to in a sum": ("N=4\n(( N += 4 ))\n", "--tp $N", ["--tp", "$N"]),
    "one that is set in a sum": ("A=4\n((N=A+4))\n", "--tp $N", ["--tp", "$N"]),
    "one that let sets": ("N=4\nlet N+=4\n", "--tp $N", ["--tp", "$N"]),
    "one that is counted in a value": ("N=4\nM=$((N++))\n", "--tp $N", ["--tp", "$N"]),
    "one that is a sum by declaration": ("declare -i N\nN=4+4\n", "--tp $N", ["--tp", "$N"]),
    "one of a loop that counts": (
        "for ((N=0;N<8;N++)); do\n",
        *("--tp $N", ["--tp", "$N"]),
    ),
    "a sum in a list": (
        "A=(--tp $((SLURM_NNODES - 1)))\n",
        '"${A[@]}"',
        ["--tp", "$((SLURM_NNODES - 1))"],
    ),
    "a sum by nothing": ("N=0\n", "--tp $((8 / N))", ["--tp", "$((8 / N))"]),
}


def words_of(before: str, words: str) -> list[Word]:
    rows = shell.read_script(f"{before}trtllm-serve {words}\n")
    (line,) = [row for row in in_script(rows, "tensorrt_llm") if not row.is_part]
    return list(line.words)


@pytest.mark.parametrize("case", RESOLVED)
def test_words_are_those_of_the_shell(case: str) -> None:
    before, words, expected = RESOLVED[case]
    assert [word.text for word in words_of(before, words)] == expected


def test_bash_agrees_wherever_something_is_resolved() -> None:
    import subprocess

    for case, (before, words, expected) in RESOLVED.items():
        if any("$" in word for word in expected):
            continue
        text = before.replace("ENV ", "export ") + f"printf '%s\\n' {words}\n"
        done = subprocess.run(
            ["bash", "-c", text], capture_output=True, text=True, check=True, env={}, timeout=20
        )
        assert done.stdout.splitlines() == expected, case


def test_a_value_stands_where_it_is_set() -> None:
    [_, tp] = words_of("\nTP=8\n", '--tp "$TP"')
    assert tp.location == (2, 4) and tp.certain


def test_words_that_only_some_runs_add_are_marked() -> None:
    before = "A=(--tp 8)\nif [ $DP = 1 ]; then\n  A+=(--dp)\nfi\n[ $PP ] && A+=(--pp 2)\n"
    optional = [word.text for word in words_of(before, '"${A[@]}"') if word.optional]
    assert optional == ["--dp", "--pp", "2"]


def test_a_text_that_doubles_itself_ends() -> None:
    before = "A0=xxxxxxxxxx\n" + "".join(f"A{n + 1}=$A{n}$A{n}\n" for n in range(60))
    assert len(words_of(before, "$A60")[0].text) < 20_000


# A line of a script, and what is said not to be read of it.
UNREAD = {
    "sed -i 's/fp8/auto/' /tmp/x.yaml": "line 1: sed writes /tmp/x.yaml",
    "sudo sed --in-place s/a/b/ $DIR/x.yml": "line 1: sudo writes $DIR/x.yml",
    "envsubst < x.tpl > /tmp/x.yaml": "line 1: envsubst writes /tmp/x.yaml",
    "cat a.yaml b.yaml > x.yaml": "line 1: cat writes x.yaml",
    "jq .a x.json >> y.json": "line 1: jq writes y.json",
    'python3 -c \'open("x.yaml", "w").write(text)\'': "line 1: python writes x.yaml",
    "python3 - <<'E'\nimport json\nwith open('x.json', 'w') as f:\n  json.dump(d, f)\nE": (
        "line 3: python writes x.json"
    ),
    "sed 's/fp8/auto/' x.yaml": "",
    "echo 'a: 1' > x.yaml": "",
    "grep a x.yaml > /dev/null": "",
    "curl host > log.txt": "",
}


@pytest.mark.parametrize("text", UNREAD)
def test_what_alters_an_option_file_unread_is_said(text: str) -> None:
    found = shell.read_script(text + "\n")
    said = list(shell_files.unread_writes(found.statements, found.here))
    assert said == ([UNREAD[text]] if UNREAD[text] else [])


def test_words_that_may_be_flags_are_said() -> None:
    words = words_of("", '--tp $TP $MORE "$@"')
    assert list(shell_files.unread_words(words)) == [
        "line 1: $MORE may put in flags",
        "line 1: $@ may put in flags",
    ]


# A number of more digits than Python reads, wherever one is read.
HUGE = "9" * 5000
HUGE_NUMBERS = {
    "run.sh": f"N={HUGE}\ntrtllm-serve m/m --tp_size $N --ep_size {HUGE} --pp_size $((N+1))\n"
    "cat > x.yaml <<E\nmax_batch_size: $N\nE\nyq -i '.a = 9' x.yaml\n",
    "config.yaml": f"resources: {{accelerator: 'H100:{HUGE}'}}\ntrt_llm: {{build: {{}}}}\n",
    "a.py": f"from tensorrt_llm import LLM\nLLM(max_batch_size={HUGE})\n",
}


@pytest.mark.parametrize("name", HUGE_NUMBERS)
def test_a_number_that_nobody_reads_breaks_nothing(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(HUGE_NUMBERS[name])
    options = lint.CheckOptions(("1.2.1",))
    assert lint.check([tmp_path / name], options, pipeline.deployment_diagnostics).files


def test_the_end_of_a_line_behind_a_backslash_is_no_part_of_a_word() -> None:
    """As the shell drops it: beside blanks, between the letters of a word, and in double quotes."""
    text = "serve --dtype auto\\\n  --po\\\nrt 80 \"a\\\nb\" 'c\\\nd' e\\\r\n f"
    [statement] = shell.statements(text)
    words = ["serve", "--dtype", "auto", "--port", "80", "ab", "c\\\nd", "e", "f"]
    assert [word.text for word in statement.words] == words
