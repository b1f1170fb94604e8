"""Writes sampling.json: what transformers' logits processors leave of random logits, for TestSamplerOracle.

python sampling.py > sampling.json (transformers 5, torch 2)
"""

import json

import torch
from transformers.generation.logits_process import (
    LogitsProcessorList,
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

torch.manual_seed(5)
cases = []
for penalty in (1.0, 1.3, 0.8):
    for temperature in (1.0, 0.7, 1.6):
        for k, p, m in ((0, 1, 0), (5, 1, 0), (0, 0.8, 0), (0, 1, 0.1), (12, 0.9, 0), (8, 0.95, 0.05), (0, 0.6, 0.3)):
            logits = (torch.randn(1, 40) * 2.5).to(torch.bfloat16).float()  # with ties, as a BF16 head makes them
            seen = torch.randint(0, 40, (1, 6))
            # The order of GenerationMixin._get_logits_processor.
            steps = LogitsProcessorList()
            if penalty != 1:
                steps.append(RepetitionPenaltyLogitsProcessor(penalty))
            if temperature != 1:
                steps.append(TemperatureLogitsWarper(temperature))
            if k:
                steps.append(TopKLogitsWarper(k))
            if p < 1:
                steps.append(TopPLogitsWarper(p))
            if m:
                steps.append(MinPLogitsWarper(m))
            left = torch.softmax(steps(seen, logits.clone()).double(), -1)[0]
            cases.append({
                "penalty": penalty, "temperature": temperature, "top_k": k, "top_p": p, "min_p": m,
                "seen": seen[0].tolist(), "logits": logits[0].tolist(),
                "left": {str(i): round(v, 9) for i, v in enumerate(left.tolist()) if v > 0},
            })
print("[" + ",\n".join(json.dumps(c, separators=(",", ":")) for c in cases) + "]")
