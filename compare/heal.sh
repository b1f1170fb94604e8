#!/usr/bin/env bash
# Smaller models of a Llama, healed: by layers, by width (neurons, then heads, then channels too) and by both, at -10, -25 and -50 % of the parameters.
#
#   compare/heal.sh COMPRESS MODEL TRAIN TEST OUT [TASK]
#
# COMPRESS is the program, MODEL SmolLM2-135M-Instruct (CUTS is written for its 30 layers of 576 channels, 1,536 neurons and 9 heads on 3),
# TRAIN the text that cuts are decided on and that healing learns from, TEST another, OUT a folder for models and reports, TASK a task of
# compress eval. Each cut is healed by training all of its parameters on what MODEL says about TRAIN (its 64 likeliest tokens, cached). OUT
# gets NAME/cut, NAME/healed and NAME.gguf (Q8_0, for compare/tokens.py), reports of compress ppl --against MODEL before and after, and those
# of the task. compare/healtable.py makes the table. What is there already is not made again.
#
# STEPS (40) of BATCH (4) sequences of 512 tokens, RATE (3e-4), SAMPLES (16) sequences for the cut, LIMIT (8) windows of TEST, DOCS (200)
# documents of the task, TASK_DATA the folder of its data, NAMES (all) a pattern of the cuts' names.
set -euo pipefail
compress=$1 model=$2 train=$3 test=$4 out=$5 task=${6:-}
names=${NAMES:-.}
mkdir -p "$out"

data=()
[ -z "${TASK_DATA:-}" ] || data=(--task-data "$TASK_DATA")

evaluate() { # NAME PATH
	[ -e "$out/$1.json" ] || "$compress" ppl "$2" --data "$test" --seqlen 512 --limit "${LIMIT:-8}" --against "$model" --report "$out/$1.json" --quiet >/dev/null
	[ -n "$task" ] || return 0
	[ -e "$out/eval/$1" ] || "$compress" eval "$2" --tasks "$task" "${data[@]}" --limit "${DOCS:-200}" --out "$out/eval/$1" --quiet >/dev/null
	[ "$1" = dense ] || [ -e "$out/eval/$1.versus.json" ] ||
		"$compress" eval compare "$out/eval/dense" "$out/eval/$1" --report "$out/eval/$1.versus.json" --quiet >/dev/null
}

cut() { # NAME FLAGS...
	local name=$1 here=$out/$1
	shift
	[[ $name =~ $names ]] || return 0
	mkdir -p "$here"

	[ -e "$here/cut" ] || "$compress" prune "$model" "$@" --calib "$train" --samples "${SAMPLES:-16}" --seqlen 512 --out "$here/cut" --report "$here/cut.json" --quiet >/dev/null
	evaluate "$name-cut" "$here/cut"
	[ -e "$here/healed" ] || "$compress" lora train "$here/cut" --kind full --data "$train" --teacher "$model" --teacher-cache "$out/said.safetensors" \
		--seqlen 512 --batch "${BATCH:-4}" --steps "${STEPS:-40}" --lr "${RATE:-3e-4}" --schedule cosine --warmup 3 --clip 1 --resume \
		--out "$here/healed" --report "$here/healed.json" --quiet >/dev/null
	evaluate "$name-healed" "$here/healed"
	[ -e "$out/$name.gguf" ] || "$compress" quantize "$here/healed" --to q8_0 --out "$out/$name.gguf" --quiet >/dev/null
}

mkdir -p "$out/eval"
[ -e "$out/dense.gguf" ] || "$compress" quantize "$model" --to q8_0 --out "$out/dense.gguf" --quiet >/dev/null
[ -z "$task" ] || [ -e "$out/eval/dense" ] || "$compress" eval "$model" --tasks "$task" "${data[@]}" --limit "${DOCS:-200}" --out "$out/eval/dense" --quiet >/dev/null

cut width-25 --ffn 896
cut both-25 --layers 25 --layer-score influence --ffn 1152
cut depth-25 --layers 20 --layer-score influence
cut width-50 --kv-heads 2 --ffn 384
cut channels-50 --kv-heads 2 --hidden 384 --ffn 1024
cut both-50 --layers 20 --layer-score influence --ffn 640
cut depth-50 --layers 11 --layer-score influence
cut width-10 --ffn 1280
cut both-10 --layers 28 --layer-score influence --ffn 1408
cut depth-10 --layers 26 --layer-score influence
