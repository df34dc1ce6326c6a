"""Whole runs of two steps with model folders made by hand from the tiny model.   m01_models.py CHECKOUT VARIANT

shards      bfloat16, three safetensors shards with an index, tied embeddings, and a redundant lm_head.weight in them
            (vllm-project/vllm#6758, vllm#51665, NVIDIA-NeMo/Automodel#2511). Expected: trains; served = trained.
generation  a template with generation tags (abetlen/llama-cpp-python#2225). Expected: trains, or refused at once with a reason.
noeos       no eos_token, no generation_config.json; eos only in config.json (vllm#5954). Expected: trains, or refused at once.
"""

import json
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

checkout, variant = sys.argv[1:3]
source = Path("~/.cache/seamlessflow/models/tiny-calculator").expanduser()
folder = Path(tempfile.mkdtemp(prefix="model-")) / "m"
shutil.copytree(source, folder)
if variant == "shards":
    from safetensors.torch import load_file, save_file

    weights = {k: v.bfloat16() for k, v in load_file(folder / "model.safetensors").items()}
    weights["lm_head.weight"] = weights["model.embed_tokens.weight"].clone()
    (folder / "model.safetensors").unlink()
    names, where = sorted(weights), {}
    for number in range(3):
        part = f"model-0000{number + 1}-of-00003.safetensors"
        mine = {n: weights[n].contiguous() for n in names[number::3]}
        where |= dict.fromkeys(mine, part)
        save_file(mine, folder / part, metadata={"format": "pt"})
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {"total_size": 1}, "weight_map": where}))
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "dtype": "bfloat16", "tie_word_embeddings": True}))
if variant == "generation":
    path = folder / "chat_template.jinja"
    text = path.read_text()
    path.write_text(
        text.replace(
            "{{ message.content or '' }}",
            "{% if message.role == 'assistant' %}{% generation %}{{ message.content or '' }}{% endgeneration %}{% else %}{{ message.content or '' }}{% endif %}",
        )
    )
if variant == "noeos":
    path = folder / "tokenizer_config.json"
    config = json.loads(path.read_text())
    config.pop("eos_token", None)
    path.write_text(json.dumps(config))
    (folder / "generation_config.json").unlink(missing_ok=True)
    (folder / "special_tokens_map.json").unlink(missing_ok=True)
    print("config.json eos:", json.loads((folder / "config.json").read_text()).get("eos_token_id"))
run_file = folder.parent / "run.toml"
run_file.write_text(f'''name = "m-{variant}"
seed = 1
[model]
name = "{folder}"
max_context_tokens = 256
[tasks]
source = "deploy.demo.arithmetic:questions"
num_questions = 200
[[agents]]
env = "calculator"
entrypoint = "deploy.demo.calculator:run"
reward = "deploy.demo.verifiers:last_number"
[sampling]
max_tokens = 24
[algorithm]
steps = 2
groups_per_step = 2
group_size = 4
learning_rate = 5e-4
drop_zero_variance = false
[evaluation]
before = false
after = false
''')
began = time.monotonic()
out = folder.parent / "out.txt"
with out.open("w") as file:
    done = subprocess.Popen(
        [f"{checkout}/.venv/bin/python", "-m", "seamlessflow.cli", "train", str(run_file)],
        cwd=checkout,
        stdout=file,
        stderr=file,
    )
    try:
        done.wait(240)
    except subprocess.TimeoutExpired:
        done.send_signal(2)
        done.wait(60)
print(f"exit code {done.returncode} after {time.monotonic() - began:.0f} s")
print(out.read_text()[-1800:])
runs = sorted(Path(checkout, "runs").glob(f"m-{variant}-*"))
if runs and (runs[-1] / "metrics.jsonl").is_file():
    for line in (runs[-1] / "metrics.jsonl").read_text().splitlines():
        m = json.loads(line)
        m = m.get("metrics", m)
        print({k: m[k] for k in ("logprob_gap", "logprob_gap_limit", "logprob_gap_alarm", "loss", "grad_norm") if k in m})
    if (runs[-1] / "model").is_dir():
        print("model/:", sorted(p.name for p in (runs[-1] / "model").iterdir()))
sys.exit(0 if done.returncode == 0 else 1)
