"""Writes rope.json: frequencies of rotations as transformers computes them in float32, for configurations of every type.

    python3 rope.py > rope.json        # made with transformers 5.23
"""
import json
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

BASE = {"rope_theta": 10000.0}
CASES = [
    ({"rope_type": "linear", "factor": 4.0}, 100, 256), ({"rope_type": "dynamic", "factor": 2.0}, 100, 256), ({"rope_type": "dynamic", "factor": 2.0}, 256, 256), ({"rope_type": "dynamic", "factor": 2.0}, 1000, 256),
    ({"rope_type": "llama3", "rope_theta": 500000.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 64}, 100, 512),
    ({"rope_type": "llama3", "factor": 32.0, "low_freq_factor": 1.0, "high_freq_factor": 2.0, "original_max_position_embeddings": 8192}, 100, 131072),
    ({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}, 100, 256), ({"rope_type": "yarn", "factor": 40.0, "original_max_position_embeddings": 4096, "beta_fast": 16, "beta_slow": 2, "mscale": 0.707, "mscale_all_dim": 0.5}, 100, 163840),
    ({"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 512, "attention_factor": 1.5}, 100, 4096), ({"rope_type": "yarn", "factor": 32.0, "original_max_position_embeddings": 4096, "truncate": False, "rope_theta": 150000.0}, 100, 131072),
    ({"rope_type": "longrope", "factor": 4.0, "original_max_position_embeddings": 64, "short_factor": [1.0 + i / 8 for i in range(8)], "long_factor": [2.0 + i for i in range(8)]}, 64, 256),
    ({"rope_type": "longrope", "factor": 4.0, "original_max_position_embeddings": 64, "short_factor": [1.0 + i / 8 for i in range(8)], "long_factor": [2.0 + i for i in range(8)]}, 65, 256),
]

out = []
for parameters, n, most in CASES:
    parameters = {**BASE, **parameters}
    c = LlamaConfig(hidden_size=16, num_attention_heads=1, num_key_value_heads=1, max_position_embeddings=most, rope_parameters=dict(parameters))
    freq, gain = ROPE_INIT_FUNCTIONS[parameters["rope_type"]](c, "cpu", seq_len=n)
    out.append(json.dumps({"rope_parameters": parameters, "positions": n, "max_position_embeddings": most, "inv_freq": freq.tolist(), "gain": float(gain)}))
print("[\n" + ",\n".join(out) + "\n]")
