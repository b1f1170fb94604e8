#!/usr/bin/env bash
# What each byte buys: a model in many forms, each measured against its dense self.
#
#   compare/front.sh COMPRESS MODEL CALIB TEST OUT [TASK]
#
# COMPRESS is the program, MODEL a folder (SmolLM2: 128 does not divide its rows, hence groups of 64), CALIB and TEST texts, OUT a folder
# for models and reports, TASK a task of compress eval. For every form: a report of compress ppl --against MODEL (perplexity, divergence,
# paired test of the losses) in OUT/NAME.json and that of the command that made it in OUT/made/NAME.json, with TASK also its accuracy and a
# paired test of that; OUT/front.svg and OUT/front.html draw all. compare/fronttable.py makes a table of one or several OUT. A form that is
# there already is not made or measured again.
#
# LIMIT (8) is how many windows of 512 are measured, SAMPLES (32) how many are calibrated with, DOCS (200) how many documents of the task,
# TASK_DATA the folder of its data, FORMS and TASK_FORMS (all) patterns of the forms' names, ONCE (off) removes a form that was measured,
# TOKENS (off) generates with each form, too, exactly and with --fast, 16 tokens and 144: reports in OUT/tokens.
set -euo pipefail
compress=$1 model=$2 calib=$3 test=$4 out=$5 task=${6:-}
limit=${LIMIT:-8} docs=${DOCS:-200} forms=${FORMS:-.} task_forms=${TASK_FORMS:-.}
mkdir -p "$out/made" "$out/tokens"

data=()
[ -z "${TASK_DATA:-}" ] || data=(--task-data "$TASK_DATA")
text=(--calib "$calib" --samples "${SAMPLES:-32}" --seqlen 512)

# form NAME PATH ARGUMENTS: a model that compress makes with ARGUMENTS at OUT/PATH.
form() {
	local name=$1 path=$out/$2
	shift 2
	[[ $name =~ $forms ]] || return 0
	! done_already "$name" || return 0

	[ -e "$path" ] || "$compress" "$@" --out "$path" --report "$out/made/$name.json" --quiet >/dev/null
	measure "$name" "$path"
	[ -z "${ONCE:-}" ] || rm -r "$path"
}

with_task() {
	[ -n "$task" ] && [[ $1 =~ $task_forms ]]
}

done_already() {
	[ -e "$out/$1.json" ] || return 1
	[ -z "${TOKENS:-}" ] || [ -e "$out/tokens/$1.fast.144.json" ] || return 1
	! with_task "$1" || [ -e "$out/eval/$1.versus.json" ]
}

measure() {
	[ -e "$out/$1.json" ] || "$compress" ppl "$2" --data "$test" --seqlen 512 --limit "$limit" --against "$model" --report "$out/$1.json" --quiet >/dev/null
	[ -z "${TOKENS:-}" ] || generate "$@"
	with_task "$1" || return 0
	[ -e "$out/eval/$1" ] || "$compress" eval "$2" --tasks "$task" "${data[@]}" --limit "$docs" --out "$out/eval/$1" --quiet >/dev/null
	[ -e "$out/eval/$1.versus.json" ] || "$compress" eval compare "$out/eval/dense" "$out/eval/$1" --report "$out/eval/$1.versus.json" --quiet >/dev/null
}

generate() { # NAME PATH
	local how count
	for how in exact fast; do
		for count in 16 144; do
			[ -e "$out/tokens/$1.$how.$count.json" ] ||
				"$compress" generate "$2" --prompt 'Once upon a time there was' --max-tokens "$count" --threads 1 $([ $how = exact ] || echo --fast) \
					--report "$out/tokens/$1.$how.$count.json" --quiet >/dev/null
		done
	done
}

# file NAME ARGUMENTS and folder NAME ARGUMENTS: quantised ones.
file() { form "$1" "$1.gguf" quantize "$model" "${@:2}"; }
folder() { form "$1" "$1" quantize "$model" "${@:2}"; }

if [ -n "$task" ] && [ ! -e "$out/eval/dense" ]; then
	mkdir -p "$out/eval"
	"$compress" eval "$model" --tasks "$task" "${data[@]}" --limit "$docs" --out "$out/eval/dense" --quiet >/dev/null
fi
[ -e "$out/imatrix.gguf" ] || "$compress" imatrix "$model" --data "$calib" --seqlen 512 --chunks 40 --out "$out/imatrix.gguf" --quiet >/dev/null

for t in q8_0 q6_k q5_k_m q4_k_m q4_0 iq4_nl q3_k_m; do
	file "$t" --to "$t"
	file "$t+imatrix" --to "$t" --imatrix "$out/imatrix.gguf"
done
for size in 4.6 5.1 5.6 6.2; do
	file "chosen-$size" --to q3_k,q4_0,iq4_nl,q5_0,q5_1,q8_0 --size "${size}bpw" --imatrix "$out/imatrix.gguf" "${text[@]}" --samples 16
done

four=(--group-size 64)
for scheme in w4a16 w4a16_asym; do
	folder "$scheme" --to "$scheme" "${four[@]}"
	folder "$scheme-mse" --to "$scheme" "${four[@]}" --range mse
	folder "$scheme-imatrix_mse" --to "$scheme" "${four[@]}" --range imatrix_mse "${text[@]}"
	folder "$scheme-clip" --to "$scheme" "${four[@]}" --range clip "${text[@]}"
	for method in gptq awq awq+gptq; do
		folder "$scheme-$method" --to "$scheme" "${four[@]}" --method "$method" "${text[@]}"
	done
done
folder w4a16-awq-minmax --to w4a16 "${four[@]}" --method awq --range minmax "${text[@]}"
folder w4a16-gptq-mse --to w4a16 "${four[@]}" --method gptq --range mse "${text[@]}"
folder w4a16_asym-hqq --to w4a16_asym "${four[@]}" --method hqq
folder w4a16-gptq-2:4 --to w4a16 "${four[@]}" --method gptq --pattern 2:4 "${text[@]}"
folder w4a16-gptq-50 --to w4a16 "${four[@]}" --method gptq --sparsity 0.5 "${text[@]}"
folder gptq-gptq --to gptq "${four[@]}" --method gptq "${text[@]}"
for scheme in w8a16 w8a8 fp8_dynamic fp8_block nvfp4a16 mxfp4a16; do
	folder "$scheme" --to "$scheme"
done
folder w8a8-smooth --to w8a8 --smooth 0.5 "${text[@]}"
for scheme in nvfp4a16 mxfp4a16; do
	folder "$scheme-gptq" --to "$scheme" --method gptq "${text[@]}"
done
folder nvfp4a16-mse --to nvfp4a16 --range mse
for method in magnitude wanda sparsegpt; do
	form "$method-50" "$method-50" prune "$model" --method "$method" --sparsity 0.5 --save bitmask "${text[@]}"
done
form sparsegpt-2:4 sparsegpt-2:4 prune "$model" --method sparsegpt --pattern 2:4 --save bitmask "${text[@]}"

"$compress" report "$out"/*.json --out "$out/front.svg" --overwrite --quiet >/dev/null
"$compress" report "$out"/*.json --out "$out/front.html" --overwrite --quiet >/dev/null
