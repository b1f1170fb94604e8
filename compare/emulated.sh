#!/bin/bash
# Tests on a processor that this machine is not: built here, run by Linux in the emulator Bochs, which has AMX, AVX-512 and AVX-VNNI. It shows
# that kernels compute what they should, and nothing about their speed.
#
#   compare/emulated.sh OUT MODEL 'PACKAGE [NAME=VALUE…] [FLAGS]'…
#
#   compare/emulated.sh emulated-out sapphire_rapids './kernels/cpu -test.run Quantised -test.v' \
#     './kernels/cpu COMPRESS_CPU_DISABLE=amx -test.run MatMul'
#   compare/emulated.sh emulated-out arrow_lake './kernels/cpu -test.run Quantised'    # AVX-VNNI without AVX-512
#
# Every package's test program is built without cgo and run in a folder with its testdata, with the variables and flags of its line (in which
# nothing is quoted). MODEL is one of Bochs's (bochs --help cpu); sapphire_rapids has AMX, AVX-512 and AVX-VNNI, corei7_icelake_u AVX-512 with
# VNNI, tigerlake that without BF16, corei7_haswell_4770 AVX2. What was said is in OUT/serial.txt, and the exit status is 0 if every line's was.
# Memory is 2 GiB. What is a second on a processor takes minutes here: choose the tests. TestPeaks and benchmarks would take hours.
#
# It takes, from the environment:
#   BOCHS     the emulator (https://github.com/bochs-emu/Bochs, 783b58fd6 with compare/bochs.patch, without which Linux finds no AMX), configured in
#             its folder bochs: ./configure --with-nogui --enable-x86-64 --enable-avx --enable-evex --enable-amx --enable-repeat-speedups
#             --enable-fast-function-calls --enable-handlers-chaining --disable-docbook (default: bochs)
#   BXSHARE   its folder bochs/bios, with BIOS-bochs-latest and VGABIOS-lgpl/ (default: /usr/share/bochs)
#   LINUX     a kernel, 5.16 or later, that needs no module for its serial port and its file system in memory, as Debian's
#             linux-image-cloud-amd64 has it in /boot (default: the newest /boot/vmlinuz-*)
#   BUSYBOX   a static one: Debian's busybox-static (default: /bin/busybox)
#   ISOLINUX, SYSLINUX   the folders with isolinux.bin and ldlinux.c32 (default: where Debian's isolinux and syslinux-common have them)
#   EXCLUDE   features that the emulated processor is to lack, as Bochs spells them: 'amx avx512'
# and cpio, xorriso and Go.
set -euo pipefail
here=$(cd "$(dirname "$0")/.." && pwd)
if [ $# -lt 3 ]; then
  sed -n '2,/^set/{s/^# \{0,1\}//;/^set/!p}' "$0" >&2
  exit 2
fi
out=$1 model=$2
shift 2

bochs=${BOCHS:-bochs}
bios=${BXSHARE:-/usr/share/bochs}
linux=${LINUX:-$(printf '%s\n' /boot/vmlinuz-* | sort -V | tail -n 1)}
busybox=${BUSYBOX:-/bin/busybox}
isolinux=${ISOLINUX:-/usr/lib/ISOLINUX}
syslinux=${SYSLINUX:-/usr/lib/syslinux/modules/bios}
for f in "$bios/BIOS-bochs-latest" "$bios/VGABIOS-lgpl/VGABIOS-lgpl-latest.bin" "$linux" "$busybox" "$isolinux/isolinux.bin" \
  "$syslinux/ldlinux.c32"; do
  [ -f "$f" ] || { echo "$0: $f is not there; the head of this script says where it comes from" >&2; exit 2; }
done
for c in "$bochs" cpio xorriso go; do
  command -v "$c" >/dev/null || { echo "$0: $c is needed" >&2; exit 2; }
done

mkdir -p "$out"
out=$(cd "$out" && pwd)
rm -rf "$out/system" "$out/disk" "$out/serial.txt" "$out/bochs.txt"
mkdir -p "$out"/system/{bin,dev,proc,sys,tmp,tests} "$out/disk"

# The file system in memory: what runs, and a program that runs it. The serial port is the only way out.
cp "$busybox" "$out/system/bin/busybox"
cat >"$out/system/init" <<'INIT'
#!/bin/busybox sh
b=/bin/busybox
$b mount -t devtmpfs none /dev
$b mount -t proc none /proc
$b mount -t sysfs none /sys
$b mount -t tmpfs none /tmp
exec </dev/null >/dev/ttyS0 2>&1
export HOME=/tmp PATH=/bin
failed=0
. /plan
echo "emulated: end, $failed failed"
$b sleep 2 # what the port has not sent yet would be lost
$b poweroff -f
INIT
chmod +x "$out/system/init"

n=0
{
  echo "echo \"emulated: \$(\$b uname -sr), \$(\$b sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | \$b head -n 1)\""
  echo "echo \"emulated:\$(\$b sed -n 's/^flags[^:]*://p' /proc/cpuinfo | \$b head -n 1 | \$b tr ' ' '\n' |" \
    "\$b grep -E '^(avx|amx|fma|f16c)' | \$b tr '\n' ' ' | \$b sed 's/^/ /')\""
  for line in "$@"; do
    read -ra words <<<"$line"
    package=${words[0]} variables='' flags=''
    for w in "${words[@]:1}"; do
      case $w in
        -*) flags+=" '$w'" ;;
        [A-Z]*=*) if [ -z "$flags" ]; then variables+=" '$w'"; else flags+=" '$w'"; fi ;;
        *) flags+=" '$w'" ;;
      esac
    done

    folder=$(cd "$here" && go list -f '{{.Dir}}' "$package")
    name=${package//[^A-Za-z0-9]/_}
    if [ ! -d "$out/system/tests/$name" ]; then
      mkdir "$out/system/tests/$name"
      (cd "$here" && CGO_ENABLED=0 go test -c -ldflags='-s -w' -o "$out/system/tests/$name/test" "$package") >&2
      [ ! -d "$folder/testdata" ] || cp -rL "$folder/testdata" "$out/system/tests/$name/testdata"
    fi
    n=$((n + 1))
    echo "echo 'emulated: $n of $#: $line'"
    echo "cd /tests/$name"
    echo "\$b env$variables ./test$flags; s=\$?"
    echo "echo \"emulated: $n of $#: exit status \$s\"; [ \$s = 0 ] || failed=\$((failed + 1))"
  done
} >"$out/system/plan"

# The disk: a CD that starts the kernel. Its clock is told what an instruction takes here (ips below). Bochs reports fast short strings but lacks
# the register that allows fast strings: the kernel then switches the latter off, and its memmove, which has a case of short ones only where it
# has not the former, would copy without end.
(cd "$out/system" && find . -print0 | LC_ALL=C sort -z | cpio --null --quiet -o -H newc -R 0:0) >"$out/disk/initrd"
cp "$linux" "$out/disk/linux"
cp "$isolinux/isolinux.bin" "$syslinux/ldlinux.c32" "$out/disk"
cat >"$out/disk/isolinux.cfg" <<'CONF'
serial 0 115200
default test
label test
  kernel linux
  append initrd=initrd console=ttyS0,115200 quiet nokaslr mitigations=off lpj=800000 panic=0 tsc_early_khz=200000 clearcpuid=fsrm
CONF
xorriso -as mkisofs -quiet -b isolinux.bin -c boot.cat -no-emul-boot -boot-load-size 4 -boot-info-table -o "$out/disk.iso" "$out/disk"

cat >"$out/bochsrc" <<CONF
megs: 2048
cpu: model=$model, count=1, ips=200000000, reset_on_triple_fault=0, ignore_bad_msrs=1${EXCLUDE:+, exclude_features="$EXCLUDE"}
romimage: file=$bios/BIOS-bochs-latest, options=fastboot
vgaromimage: file=$bios/VGABIOS-lgpl/VGABIOS-lgpl-latest.bin
ata0-master: type=cdrom, path=$out/disk.iso, status=inserted
boot: cdrom
com1: enabled=1, mode=file, dev=$out/serial.txt
display_library: nogui
clock: sync=none
log: $out/bochs.txt
panic: action=fatal
error: action=ignore
info: action=ignore
CONF

# Bochs ends when the guest switches itself off. Where that does not work, the guest's last line does.
: >"$out/serial.txt"
BXSHARE=$bios "$bochs" -q -f "$out/bochsrc" </dev/null >"$out/bochs.out" 2>&1 &
pid=$!
trap 'kill "$pid" 2>/dev/null || true' EXIT
tail -n +1 -f --pid="$pid" "$out/serial.txt" &
while kill -0 "$pid" 2>/dev/null; do
  if grep -q -e '^emulated: end' -e 'Kernel panic' "$out/serial.txt"; then
    sleep 2
    kill "$pid" 2>/dev/null || true
  fi
  sleep 1
done
wait "$pid" 2>/dev/null || true
grep -q '^emulated: end, 0 failed' "$out/serial.txt"
