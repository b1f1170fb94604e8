#!/bin/bash
# Adapters with the parameters of a LoRA of rank 2, and LoRAs of higher ranks, on four skills at once: trained by the program alone.
#
#   compare/shards.sh COMPRESS NANO OUT [PROCESSES]
#
# COMPRESS is the program, NANO the folder testdata/nano. Of the 400 records of each skill (people's facts, contradicted facts, sums, tales)
# every 20th is held out; the others are drawn in equal shares. The learning rate of each kind is that of RATES with the lowest held-out loss
# with seed 0, and is used for SEEDS; what is in OUT already is not done again. KINDS="lora2 mos2" takes some only. Prints a Markdown table:
# held-out loss (mean ± standard error over the seeds), of each rate that of seed 0.
#
# PAIRS=1000 asks for something else, of which a small adapter cannot hold enough: so many pairs of words, each with a third word drawn at
# random, which have to be learned by heart. There is nothing to hold out: the loss is that of the pairs themselves.
set -euo pipefail
compress=$(realpath "$1") nano=$(realpath "$2") out=$3 processes=${4:-1}
mkdir -p "$out/runs"
cd "$out"

kinds=${KINDS:-lora2 lora8 lora16 mos1 mos2 mos4 mos2paired mos2whole mos2private vera prolora share rasa miss gralora shira}
rates=${RATES:-3e-3 1e-2 3e-2}
seeds=${SEEDS:-0 1 2}
steps=${STEPS:-150} batch=${BATCH:-16}
shape() {
  case $1 in
    lora*) echo "--kind lora --rank ${1#lora}" ;;
    mos1) echo "--kind mos --equivalent-rank 1 --rank 4 --shards 4" ;;
    mos2) echo "--kind mos --equivalent-rank 2 --private -1 --rank 8 --shards 4" ;;
    # what the paper takes away: pair dissociation, the sharding of vectors, public ranks alone, the choice of a subset
    mos2paired) echo "--kind mos --equivalent-rank 2 --private -1 --rank 8 --shards 4 --paired" ;;
    mos2whole) echo "--kind mos --equivalent-rank 2 --private -1 --rank 8 --shards 1" ;;
    mos2private) echo "--kind mos --equivalent-rank 2 --private 1 --rank 4 --shards 4" ;;
    mos2pure) echo "--kind mos --equivalent-rank 2 --sampling pure" ;;
    mos4) echo "--kind mos --equivalent-rank 4 --private -1 --rank 16 --shards 4" ;;
    vera) echo "--kind vera --rank 365" ;;
    prolora) echo "--kind prolora --rank 3 --unshared 1" ;;
    share) echo "--kind share --rank 4" ;;
    rasa) echo "--kind rasa --rank 2 --rasa-k 1" ;;
    miss) echo "--kind miss --rank 4" ;;
    gralora) echo "--kind gralora --rank 2 --gralora-k 2" ;;
    shira) echo "--kind shira --rank 2" ;;
  esac
}

skills="news rumours sums tales"
if [ -n "${PAIRS:-}" ]; then
  skills=pairs
  # the words of nano's texts, and a generator of one's own, so that the pairs are the same everywhere
  [ -f held.jsonl ] || LC_ALL=C grep -ohE '[A-Za-z]{3,}' "$nano"/train/*.jsonl | LC_ALL=C sort | uniq -c | awk -v n="$PAIRS" '
    $1 >= 3 { word[m++] = $2 }
    function draw() { x = (x * 16807) % 2147483647; return word[int(x / 2147483647 * m)] }
    END {
      for (x = 42; k < n; ) {
        pair = draw() " " draw()
        answer = draw()
        if (!(pair in seen)) { seen[pair] = 1; k++; printf "{\"prompt\": \"%s\", \"completion\": \" %s\"}\n", pair, answer }
      }
    }' | tee pairs.train.jsonl >held.jsonl
elif [ ! -f held.jsonl ]; then
  for s in $skills; do awk 'NR%20!=0' "$nano/train/$s.jsonl" >"$s.train.jsonl"; done
  for s in $skills; do awk 'NR%20==0' "$nano/train/$s.jsonl"; done >held.jsonl
fi

# train KIND RATE SEED
train() {
  local dir=runs/$1-lr$2-s$3 data=() weights=
  [ -f "$dir/training.json" ] && return
  for s in $skills; do data+=(--data "$s.train.jsonl") weights+=,1; done
  [ "$weights" = ,1 ] || data+=(--data-weights "${weights#,}")
  # shellcheck disable=SC2046
  "$compress" lora train "$nano/base" "${data[@]}" --eval held.jsonl $(shape "$1") --lr "$2" --seed "$3" \
    --batch "$batch" --steps "$steps" --seqlen 256 --schedule cosine --warmup 8 --clip 1 --threads 1 --out "$dir" --overwrite -q >/dev/null
}

held() { sed -n '/"evals"/,$ { s/.*"loss": *\([0-9.e+-]*\).*/\1/p }' "runs/$1/training.json" | sed -n 2p; }
field() { sed -n "s/^ *\"$2\": *\([0-9.e+-]*\).*/\1/p; t found; b; :found; q" "runs/$1/training.json"; }
rate() { for r in $rates; do echo "$(held "$1-lr$r-s0") $r"; done | sort -g | head -1 | cut -d' ' -f2; }
stats() { awk '{ s += $1; q += $1*$1 } END { m = s/NR; v = NR > 1 ? (q - NR*m*m)/(NR-1) : 0; printf "%.4f ± %.4f", m, sqrt((v > 0 ? v : 0)/NR) }'; }
export -f train shape
export compress nano steps batch skills

for r in $rates; do for k in $kinds; do echo "train $k $r 0"; done; done | xargs -P "$processes" -I{} bash -c '{}'
for s in $seeds; do for k in $kinds; do echo "train $k $(rate "$k") $s"; done; done | xargs -P "$processes" -I{} bash -c '{}'

echo "| trained | parameters |$(for r in $rates; do printf ' %s |' "$r"; done) held-out loss at the best rate |"
echo "|---|---|$(for _ in $rates; do printf -- '---|'; done)---|"
for k in $kinds; do
  r=$(rate "$k")
  line="| $k | $(field "$k-lr$r-s0" trainable_parameters) |"
  for x in $rates; do line+=" $(printf %.4f "$(held "$k-lr$x-s0")") |"; done
  echo "$line $(for s in $seeds; do held "$k-lr$r-s$s"; done | stats) |"
done
