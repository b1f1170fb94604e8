"""compress merge's wudi and opcm beside the published code, run as a reference.

    python3 compare/orthogonal.py COMPRESS FUSION_BENCH BASE MODEL MODEL...

COMPRESS is the program, FUSION_BENCH a checkout of tanganke/fusion_bench, BASE and the MODELs folders of one architecture. Prints by how
much the merged matrices differ, relative to what the merge changes in them: wudi from fusion_bench's wudi_merging, opcm from its
merge_linear_weights, one model after the other, divided by the same lambda. The published code computes in float32, compress in float64.
Needs torch and safetensors.
"""
import contextlib
import importlib
import subprocess
import sys
import tempfile
import types

import torch
from safetensors.torch import load_file


def stub(name, **content):
    m = types.ModuleType(name)
    m.__path__ = []
    for key, value in content.items():
        setattr(m, key, value)
    sys.modules[name] = m
    return m


def published(root):
    """The two modules without what the rest of fusion_bench needs."""
    none = type("None_", (), {})
    for name in ("fusion_bench", "fusion_bench.mixins", "fusion_bench.models", "fusion_bench.models.utils", "fusion_bench.taskpool",
                 "fusion_bench.utils", "fusion_bench.utils.json", "fusion_bench.utils.parameters", "fusion_bench.utils.state_dict_arithmetic",
                 "lightning", "omegaconf"):
        stub(name)
    top = sys.modules["fusion_bench"]
    top.BaseAlgorithm = top.BaseModelPool = none
    top.auto_register_config = lambda c: c
    mix = sys.modules["fusion_bench.mixins"]
    mix.LightningFabricMixin = type("A", (), {})
    mix.SimpleProfilerMixin = type("B", (), {})
    sys.modules["fusion_bench.models.utils"].is_leaf_module = None
    sys.modules["fusion_bench.taskpool"].CLIPVisionModelTaskPool = None
    u = sys.modules["fusion_bench.utils"]
    u.instantiate, u.timeit_context = None, lambda *a: contextlib.nullcontext()
    for name in ("load_from_json", "save_to_json"):
        setattr(sys.modules["fusion_bench.utils.json"], name, None)
    sys.modules["fusion_bench.utils.parameters"].state_dict_to_vector = None
    for name in ("state_dict_add", "state_dict_sub"):
        setattr(sys.modules["fusion_bench.utils.state_dict_arithmetic"], name, None)
    sys.modules["omegaconf"].DictConfig = dict
    for name in ("wudi", "opcm"):
        package = stub(f"published_{name}")
        package.__path__ = [f"{root}/fusion_bench/method/{name}"]
    return importlib.import_module("published_wudi.wudi").wudi_merging, importlib.import_module("published_opcm.opcm").OPCMForCLIP


def tensors(folder):
    return {k: v.float() for k, v in load_file(f"{folder}/model.safetensors").items()}


def merged(compress, base, models, method, parameters):
    with tempfile.TemporaryDirectory() as tmp:
        listed = ", ".join(f"{{model: {m}}}" for m in models)
        with open(f"{tmp}/r.yaml", "w") as f:
            f.write(f"merge_method: {method}\nbase_model: {base}\nmodels: [{listed}]\ndtype: float32\nparameters: {{{parameters}}}\n")
        subprocess.run([compress, "merge", f"{tmp}/r.yaml", "--out", f"{tmp}/m", "--quiet"], check=True, stdout=subprocess.DEVNULL)
        return tensors(f"{tmp}/m")


def report(name, ours, theirs, base, kind):
    worst, total = 0.0, [0.0, 0.0]
    for k, v in theirs.items():
        change = (v - base[k]).double()
        off = (ours[k].double() - v.double()).norm()
        total[0] += float(off) ** 2
        total[1] += float(change.norm()) ** 2
        if change.norm() > 0:
            worst = max(worst, float(off / change.norm()))
    print(f"{name}: {len(theirs)} {kind}: differ by {(total[0] / total[1]) ** 0.5:.1e} of the change, one by {worst:.1e} at most")


def main():
    compress, root, base_path, *paths = sys.argv[1:]
    torch.set_num_threads(1)
    wudi, opcm = published(root)
    base, models = tensors(base_path), [tensors(p) for p in paths]
    vectors = [{k: m[k] - base[k] for k in base} for m in models]

    for steps in (1, 300):
        theirs = {k: base[k] + v.detach() for k, v in wudi(vectors, accelerator="cpu", iter_num=steps).items()}
        ours = merged(compress, base_path, paths, "wudi", f"iterations: {steps}")
        report(f"wudi, {steps} steps", ours, theirs, base, "tensors")

    # Tables over the vocabulary are no linear layers, and are left out.
    wide = max(v.shape[0] for v in base.values() if v.dim() == 2)
    linear = [k for k, v in base.items() if v.dim() == 2 and v.shape[0] < wide]
    lam, theirs = 2.0, {}
    for k in linear:
        now = models[0][k]
        for m in models[1:]:
            self = types.SimpleNamespace(previous_lambda_t=1.0, lambda_t=1.0)
            now = opcm.merge_linear_weights(self, now, base[k], m[k], k, 0.5)
        theirs[k] = base[k] + (now - base[k]) / lam
    report("opcm", merged(compress, base_path, paths, "opcm", f"lambda: {lam}"), theirs, base, "matrices")


main()
