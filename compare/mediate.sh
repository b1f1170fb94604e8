#!/bin/bash
# Mediate against the experts it is made of and against static merges: merged and scored by the program alone.
#
#   compare/mediate.sh COMPRESS LAB OUT [THREADS]
#
# COMPRESS is the program; LAB holds base, the experts news, rumours, sums and plays, tasks/lab_*.yaml and tasks/prompts/*.jsonl; the data of
# the tasks are looked for in the folder three above LAB. Every figure is of all documents of a task (news 120, rumours 100, subtraction
# 150; plays 45, in bits per byte); in brackets those after the first 60, which no choice has seen. ROUTER="classifier: lda, features: early_last, " makes the former router, that of the sweeps. ROWS="main p bits layers
# experts rules" takes some tables only. What is in OUT already is not done again, so that an interrupted run goes on. Prints Markdown.
set -euo pipefail
compress=$(realpath "$1") lab=$(realpath "$2") out=$3 threads=${4:-0}
mkdir -p "$out"
cd "$out"
rows=" ${ROWS:-main bits p layers experts rules} "
all="news rumours subtract plays"

# recipe NAME TEXT: merges once
recipe() {
  [ -f "$1.bytes" ] && return
  printf '%s\n' "$2" >"$1.yaml"
  "$compress" merge "$1.yaml" --out "$1" --threads "$threads" --overwrite -q >/dev/null
  find "$1" -type f \( -name '*.safetensors' -o -name mediator.json \) -printf '%s\n' | awk '{ s += $1 } END { print s }' >"$1.bytes"
}

# models PARAMETERS: the experts as a recipe lists them
models() {
  printf 'base_model: %s/base\nmodels:\n' "$lab"
  for e in ${EXPERTS:-sums news plays rumours}; do printf -- '- {model: %s/%s, name: %s%s}\n' "$lab" "$e" "$e" "${1:+, parameters: {$1\}}"; done
}
# plain PARAMETERS: the same without names, for other methods
plain() { models "$1" | sed 's/, name: [a-z]*//'; }
# mediate NAME PARAMETERS
mediate() {
  recipe "$1" "merge_method: mediate
$(models "")
parameters: {$2, router: {${ROUTER:-}prompts: {$(for e in ${EXPERTS:-sums news plays rumours}; do printf '%s: %s/tasks/prompts/%s.jsonl, ' "$e" "$lab" "$e"; done)}}}"
}

# score NAME MODEL TASKS [FLAGS]
score() {
  local name=$1 model=$2 tasks
  tasks=$(for t in $3; do printf '%s/tasks/lab_%s.yaml,' "$lab" "$t"; done)
  shift 3
  [ -f "$name.peak" ] && return
  /usr/bin/time -f %M -o "$name.peak.new" "$compress" eval "$model" --tasks "${tasks%,}" --data "$lab/../../.." --out "$name.eval" \
    --bootstrap-iters -1 --threads "$threads" --overwrite -q "$@" >/dev/null
  mv "$name.peak.new" "$name.peak"
}

# correct NAME TASK: the points of every document, in order
correct() { sed -n 's/.*"\(acc\|exact_match\)": *\([0-9.]*\).*/\2/p' "$1.eval/samples_lab_$2.jsonl"; }
bits() { sed -n 's/.*"bits_per_byte,none": *\([0-9.]*\).*/\1/p' "$1.eval/results.json"; }
mean() { awk -v from="$1" 'NR > from { s += $1; n++ } END { if (n) printf "%.3f", s/n }'; }
# share NAME EXPERTS: of what so many experts take
share() { [ -f "$1.bytes" ] && awk -v n="$2" -v e="$expert" '{ printf "%.0f %%", 100*$1/n/e }' "$1.bytes"; }
expert=$(find "$lab/news" -name '*.safetensors' -printf '%s\n' | awk '{ s += $1 } END { print s }')

# line TITLE STORAGE NAME [NAME NAME NAME]: a row of the table; several names are one for each of news, rumours, subtract, plays
line() {
  local title=$1 storage=$2 at=("$3" "${4:-$3}" "${5:-$3}" "${6:-$3}") i=0 cells="" whole="" late="" peak
  for t in news rumours subtract; do
    if [ -f "${at[i]}.eval/samples_lab_$t.jsonl" ]; then
      a=$(correct "${at[i]}" $t | mean 0) b=$(correct "${at[i]}" $t | mean 60)
      cells+=" $a ($b) |" whole+="$a " late+="$b "
    else
      cells+=" – |"
    fi
    i=$((i + 1))
  done
  m=$(echo "$whole" | tr ' ' '\n' | grep . | mean 0) l=$(echo "$late" | tr ' ' '\n' | grep . | mean 0)
  peak=$(for n in "${at[@]}"; do cat "$n.peak"; done | sort -n | tail -1)
  echo "| $title |$cells $(bits "${at[3]}" | awk '{ printf "%.3f", $1 }') | $m ($l) | $storage | $((peak / 1024)) MiB |"
}
heading() {
  echo
  echo "| $1 | news | rumours | subtraction | plays | mean of the first three | storage | peak memory |"
  echo "|---|---|---|---|---|---|---|---|"
}
wants() { [[ $rows == *" $1 "* ]]; }

best="select: all, route_embeddings: true"
mediate bits3 "$best, keep: {bits: 3}"
score bits3.top1 bits3 "$all" --experts top1

if wants main; then
  recipe linear "merge_method: linear
$(plain 'weight: 1' | grep -v ^base_model)"
  recipe ties "merge_method: ties
$(plain 'weight: 1, density: 0.2')"
  recipe dare "merge_method: dare_linear
$(plain 'weight: 0.25, density: 0.5')"
  recipe stock "merge_method: model_stock
$(plain '')"
  mediate averaged "select: none"
  mediate both "select: {top_k: 4}, keep: {bits: 3}, route_embeddings: true"
  score base "$lab/base" "$all"
  for x in linear ties dare stock; do score $x $x "$all"; done
  score averaged averaged "$all"
  score both both "$all" --experts top1
  score auto bits3 "$all" --experts auto
  for x in news:news rumours:rumours sums:subtract plays:plays; do
    score "own.${x%:*}" "$lab/${x%:*}" "${x#*:}"
    score "named.${x%:*}" bits3 "${x#*:}" --experts "${x%:*}"
  done
  heading "model"
  line base "25 %" base
  line "each expert on its own task" "100 %" own.news own.rumours own.sums own.plays
  line linear "$(share linear 4)" linear
  line "TIES, density 0.2" "$(share ties 4)" ties
  line "DARE (linear), density 0.5" "$(share dare 4)" dare
  line model_stock "$(share stock 4)" stock
  line "mediate, averaging only" "$(share averaged 4)" averaged
  line "mediate, both: four of eight groups routed, 3 bits, top1" "$(share both 4)" both
  line "mediate, routing only, 3 bits, auto" "$(share bits3 4)" auto
  line "mediate, routing only, 3 bits, top1" "$(share bits3 4)" bits3.top1
  line "the same, each expert named" "$(share bits3 4)" named.news named.rumours named.sums named.plays
fi
if wants bits; then
  heading "bits an element, top1"
  for b in 1 2 3 4; do
    mediate bits$b "$best, keep: {bits: $b}"
    score bits$b.top1 bits$b "$all" --experts top1
    line $b "$(share bits$b 4)" bits$b.top1
  done
  mediate rank48 "$best, keep: {lowrank: 48}"
  score rank48 rank48 "$all" --experts top1
  line "rank 48" "$(share rank48 4)" rank48
fi
if wants p; then
  heading "p, magnitude, top1"
  for p in 0.05 0.1 0.2 0.3; do
    mediate p$p "$best, keep: $p"
    score p$p p$p "$all" --experts top1
    line $p "$(share p$p 4)" p$p
  done
fi
if wants layers; then
  heading "layers routed (most conflict first), 3 bits, top1"
  for k in 1 2 3 4 5 6; do
    mediate layers$k "select: {top_k: $k}, keep: {bits: 3}"
    score layers$k layers$k "$all" --experts top1
    line $k "$(share layers$k 4)" layers$k
  done
fi
if wants experts; then
  heading "experts, 3 bits, top1"
  for set in "news sums:news subtract" "news sums plays:news subtract plays" "sums news plays rumours:$all"; do
    EXPERTS=${set%:*}
    n=$(wc -w <<<"$EXPERTS")
    mediate experts$n "$best, keep: {bits: 3}"
    score experts$n experts$n "${set#*:}" --experts top1
    line "$n: $EXPERTS" "$(share experts$n "$n")" experts$n
  done
  unset EXPERTS
fi
if wants rules; then
  heading "rule of selection, 3 bits"
  for r in top1 auto auto:certain=0.3,outside=ignore auto:certain=0.3,outside=ignore,cover=0.5 auto:certain=0.3,outside=ignore,cover=0.7 auto:certain=0.3,outside=ignore,cover=0.99,most=4 auto:certain=0.6,outside=ignore \
    auto:certain=0.3,outside=ignore,soften=0.5 auto:certain=0.3,outside=ignore,soften=2 auto:certain=0.3,outside=ignore,soften=4; do
    score "rule.$r" bits3 "$all" --experts "$r"
    line "$r" "$(share bits3 4)" "rule.$r"
  done
fi
