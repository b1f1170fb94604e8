#!/usr/bin/env bash
# What each byte buys: a model in many forms, each measured against its dense self.
#
#   compare/front.sh COMPRESS MODEL CALIB TEST OUT [TASK]
#
# COMPRESS is the program, MODEL a folder (SmolLM2: 128 does not divide its rows, hence groups of 64), CALIB and TEST texts, OUT a folder
# for models and reports, TASK a task of compress eval. For every form: a report of compress ppl --against MODEL (perplexity, divergence,
# paired test of the losses) in OUT/NAME.json, with TASK also its accuracy and a paired test of that; OUT/front.svg and OUT/front.html draw
# all, OUT/table.md has the figures. A form that is there already is not made again. LIMIT (8) is how many windows of 512 are measured,
# DOCS (200) how many documents of the task, TASK_DATA the folder of its data, FORMS (all) a pattern of the forms' names.
set -euo pipefail
compress=$1 model=$2 calib=$3 test=$4 out=$5 task=${6:-}
limit=${LIMIT:-8} docs=${DOCS:-200} forms=${FORMS:-.}
mkdir -p "$out"

data=()
[ -z "${TASK_DATA:-}" ] || data=(--task-data "$TASK_DATA")
text=(--calib "$calib" --samples 32 --seqlen 512)

# form NAME PATH ARGUMENTS: a quantised model.
form() {
	local name=$1 path=$out/$2
	shift 2
	[[ $name =~ $forms ]] || return 0
	[ -e "$path" ] || "$compress" "$@" --out "$path" --quiet >/dev/null
	measure "$name" "$path"
}

measure() {
	[ -e "$out/$1.json" ] || "$compress" ppl "$2" --data "$test" --seqlen 512 --limit "$limit" --against "$model" --report "$out/$1.json" --quiet >/dev/null
	if [ -n "$task" ]; then
		[ -e "$out/eval/$1" ] || "$compress" eval "$2" --tasks "$task" "${data[@]}" --limit "$docs" --out "$out/eval/$1" --quiet >/dev/null
		[ -e "$out/eval/$1.versus.json" ] || "$compress" eval compare "$out/eval/dense" "$out/eval/$1" --report "$out/eval/$1.versus.json" --quiet >/dev/null
	fi
}

if [ -n "$task" ] && [ ! -e "$out/eval/dense" ]; then
	mkdir -p "$out/eval"
	"$compress" eval "$model" --tasks "$task" "${data[@]}" --limit "$docs" --out "$out/eval/dense" --quiet >/dev/null
fi
[ -e "$out/imatrix.gguf" ] || "$compress" imatrix "$model" --data "$calib" --seqlen 512 --chunks 40 --out "$out/imatrix.gguf" --quiet >/dev/null

for t in q8_0 q6_k q5_k_m q4_k_m q4_0 iq4_nl q3_k_m; do
	form "$t" "$t.gguf" quantize "$model" --to "$t"
	form "$t+imatrix" "$t+imatrix.gguf" quantize "$model" --to "$t" --imatrix "$out/imatrix.gguf"
done
for size in 4.6 5.1 5.6 6.2; do
	form "chosen-$size" "chosen-$size.gguf" quantize "$model" --to q3_k,q4_0,iq4_nl,q5_0,q5_1,q8_0 --size "${size}bpw" \
		--imatrix "$out/imatrix.gguf" "${text[@]}" --samples 16
done

for scheme in w4a16 w4a16_asym; do
	form "$scheme" "$scheme" quantize "$model" --to "$scheme" --group-size 64
	form "$scheme-mse" "$scheme-mse" quantize "$model" --to "$scheme" --group-size 64 --range mse
	form "$scheme-gptq" "$scheme-gptq" quantize "$model" --to "$scheme" --group-size 64 --method gptq "${text[@]}"
	form "$scheme-awq" "$scheme-awq" quantize "$model" --to "$scheme" --group-size 64 --method awq "${text[@]}"
done
form w4a16_asym-hqq w4a16_asym-hqq quantize "$model" --to w4a16_asym --group-size 64 --method hqq
for scheme in w8a16 w8a8 fp8_dynamic; do
	form "$scheme" "$scheme" quantize "$model" --to "$scheme"
done
for method in wanda sparsegpt; do
	form "$method-50" "$method-50" prune "$model" --method "$method" --sparsity 0.5 --save bitmask "${text[@]}"
done

reports=()
for f in "$out"/*.json; do
	reports+=("$f")
done
"$compress" report "${reports[@]}" --out "$out/front.svg" --overwrite --quiet >/dev/null
"$compress" report "${reports[@]}" --out "$out/front.html" --overwrite --quiet >/dev/null

python3 - "$out" <<'PY' | tee "$out/table.md"
import glob, json, os, sys
out, rows = sys.argv[1], []
for path in glob.glob(out + "/*.json"):
    name = os.path.basename(path)[:-5]
    d = json.load(open(path))
    a = d["against"]
    task = ""
    versus = f"{out}/eval/{name}.versus.json"
    if os.path.exists(versus):
        r = [r for r in json.load(open(versus))["rows"] if r["metric"].startswith("acc")][0]
        task = f'{r["b"]:.3f} ({r["b"] - r["a"]:+.3f}, p {r["p"]:.2g})'
    rows.append((d["model_bytes"], name, d["ppl"], a["paired"]["nll_difference"], a["paired"]["p"], a["kl"], a["kl_stderr"], a["same_top"], task))
print("| form | MB | perplexity | nll in pairs, nats (p) | KL, nats | same top | task (paired) |\n|---|---|---|---|---|---|---|")
for size, name, ppl, diff, p, kl, se, same, task in sorted(rows):
    print(f"| {name} | {size / 1e6:.1f} | {ppl:.2f} | {diff:+.4f} ({p:.1g}) | {kl:.4f} ± {se:.4f} | {100 * same:.1f} % | {task} |")
PY
