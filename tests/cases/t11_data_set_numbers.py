"""msgpack/msgpack-python#221, baserow/baserow#4309: integers beyond 64 bits, and half surrogates, that a data set itself makes.

tasks.source = "module:function" and reasoning-gym data sets: is a question with such an entry published, or what happens?
Expected: it is published (JSON can), or the run is refused before it begins with words that name the task.
"""

from sf_unit import verdict

from seamlessflow.codec import to_message
from seamlessflow.config.run import parse_run_config
from seamlessflow.datasets import load_questions, training_task

bad = []


def big(num_questions, seed):
    return [{"question": f"q{i}", "answer": 2 ** (60 + i)} for i in range(num_questions)]


def half(num_questions, seed):
    return [{"question": f"q{i} \ud83d", "answer": "x"} for i in range(num_questions)]


def config(source, **tasks):
    return parse_run_config(
        {
            "model": {"name": "tiny-calculator"},
            "tasks": {"source": source, "num_questions": 20, "held_out_percent": 0, **tasks},
            "agents": [{"env": "e", "entrypoint": "a:b", "reward": "c:d"}],
            "algorithm": {"steps": 1},
        }
    )


def tried(name, source, **tasks):
    try:
        made = config(source, **tasks)
        questions = load_questions(made.tasks, 1)
        for index in range(len(questions.training)):
            to_message(training_task("run", made, questions, index))
        print(f"{name:40} fine, {len(questions.training)} tasks")
    except Exception as wrong:
        print(f"{name:40} {type(wrong).__name__}: {str(wrong)[:120]}")
        bad.extend([] if type(wrong).__name__ == "ConfigError" else [name])


tried("answers of 2**60 to 2**79", "t11_data_set_numbers:big")
tried("half a surrogate pair in a question", "t11_data_set_numbers:half")
import signal

import reasoning_gym  # noqa: F401

DATASETS = (
    "products",
    "lcm",
    "gcd",
    "prime_factorization",
    "number_sequence",
    "power_function",
    "decimal_arithmetic",
    "decimal_chain_sum",
    "bitwise_arithmetic",
    "base_conversion",
    "chain_sum",
    "basic_arithmetic",
    "polynomial_multiplication",
    "complex_arithmetic",
    "fraction_simplification",
    "count_primes",
    "dice",
    "intermediate_integration",
    "propositional_logic",
    "boxnet",
)


def too_slow(*ignored):
    raise TimeoutError("too slow, left out")


signal.signal(signal.SIGALRM, too_slow)
num = 0
for dataset in DATASETS:
    num += 1
    signal.alarm(10)
    try:
        made = config("reasoning_gym", dataset=dataset)
        questions = load_questions(made.tasks, 1)
        for index in range(len(questions.training)):
            to_message(training_task("run", made, questions, index))
    except Exception as wrong:
        print(f"reasoning-gym {dataset:26} {type(wrong).__name__}: {str(wrong)[:100]}", flush=True)
        bad.extend(
            []
            if isinstance(wrong, TimeoutError) or "too slow" in str(wrong) or type(wrong).__name__ == "ConfigError"
            else [dataset]
        )
    signal.alarm(0)
print(num, "reasoning-gym data sets tried")
verdict(not bad, f"every question can be published or is refused before the run (not: {bad})")
