#!/bin/bash
# LoRA of rank 8 against Mixtures of Shards with a quarter and an eighth of its parameters: trained and scored by the program alone.
#
#   compare/mos.sh COMPRESS LAB OUT [PROCESSES]
#
# COMPRESS is the program; LAB holds base, train/news.jsonl, train/sums.jsonl and tasks/lab_news.yaml, tasks/lab_subtract.yaml; the data of
# the tasks are looked for in the folder three above LAB. Every 20th training record is held out. The learning rate of each kind is
# the one with the lowest held-out loss on news with seed 0; it is used for both skills and three seeds. What is in OUT already is not
# done again, an interrupted run goes on; KINDS="lora8 mos4th" takes some only. Prints a Markdown table: mean ± standard error over the seeds.
set -euo pipefail
compress=$(realpath "$1") lab=$(realpath "$2") out=$3 processes=${4:-1}
mkdir -p "$out/runs" "$out/scores"
cd "$out"

kinds=${KINDS:-lora8 mos4th mos8th lora2 lora1}
rates="5e-3 1e-2 2e-2"
shape() {
  case $1 in
    lora*) echo "--kind lora --rank ${1#lora}" ;;
    mos4th) echo "--kind mos --equivalent-rank 2 --private -1 --rank 12 --shards 4" ;;
    mos8th) echo "--kind mos --equivalent-rank 1 --private -1 --rank 6 --shards 4" ;;
  esac
}
task() { case $1 in news) echo lab_news ;; sums) echo lab_subtract ;; esac; }

for s in news sums; do
  [ -f "$s.held.jsonl" ] && continue
  awk 'NR%20!=0' "$lab/train/$s.jsonl" >"$s.train.jsonl"
  awk 'NR%20==0' "$lab/train/$s.jsonl" >"$s.held.jsonl"
done

# train SKILL KIND RATE SEED
train() {
  local dir=runs/$1-$2-lr$3-s$4
  [ -f "$dir/training.json" ] && return
  # shellcheck disable=SC2046
  "$compress" lora train "$lab/base" --data "$1.train.jsonl" --eval "$1.held.jsonl" $(shape "$2") --lr "$3" --seed "$4" \
    --batch 16 --steps 240 --seqlen 256 --schedule cosine --warmup 12 --clip 1 --fast --threads 1 --out "$dir" --resume -q
}

# score SKILL KIND RATE SEED
score() {
  local run=$1-$2-lr$3-s$4
  [ -f "scores/$run/results.json" ] && return
  "$compress" eval "$lab/base" --adapter "runs/$run" --tasks "$lab/tasks/$(task "$1").yaml" --data "$lab/../../.." --fast --threads 1 \
    --out "scores/$run" -q >/dev/null
}

held() { sed -n '/"evals"/,$ { s/.*"loss": *\([0-9.e+-]*\).*/\1/p; t found; b; :found; q }' "runs/$1/training.json"; }
field() { sed -n "s/^ *\"$2\": *\([0-9.e+-]*\).*/\1/p; t found; b; :found; q" "runs/$1/training.json"; }
points() { sed -n 's/.*"\(acc\|exact_match\),[a-z]*": *\([0-9.e+-]*\).*/\2/p; t found; b; :found; q' "scores/$1/results.json"; }

# rate KIND: that with the lowest held-out loss on news
rate() { for r in $rates; do echo "$(held "news-$1-lr$r-s0") $r"; done | sort -g | head -1 | cut -d' ' -f2; }

one() { train "$@" && score "$@"; }
export -f train score shape task one
export compress lab

for k in $kinds; do for r in $rates; do echo "train news $k $r 0"; done; done | xargs -P "$processes" -I{} bash -c '{}'
for skill in news sums; do for s in 0 1 2; do for k in $kinds; do echo "one $skill $k $(rate "$k") $s"; done; done; done |
  xargs -P "$processes" -I{} bash -c '{}'

echo "| trained | parameters | bytes | rate | news, accuracy | news, held-out loss | sums, exact match | sums, held-out loss | ms a step (sums) |"
echo "|---|---|---|---|---|---|---|---|---|"
stats() { awk '{ s += $1; q += $1*$1 } END { m = s/NR; v = (q - NR*m*m)/(NR-1); printf "%.4f ± %.4f", m, sqrt((v > 0 ? v : 0)/NR) }'; }
for k in $kinds; do
  r=$(rate "$k")
  line="| $k | $(field "news-$k-lr$r-s0" trainable_parameters) | $(stat -c %s "runs/news-$k-lr$r-s0/adapter_model.safetensors") | $r |"
  for skill in news sums; do
    line+=" $(for s in 0 1 2; do points "$skill-$k-lr$r-s$s"; done | stats) |"
    line+=" $(for s in 0 1 2; do held "$skill-$k-lr$r-s$s"; done | stats) |"
  done
  line+=" $(for s in 0 1 2; do sed -n 's/^ *"seconds": *\([0-9.e+-]*\).*/\1/p' "runs/sums-$k-lr$r-s$s/training.json"; done | sort -g | awk '{ a[NR] = $1 } END { printf "%.0f", 1000*a[int(NR/4)] }') |"
  echo "$line"
done
