#!/usr/bin/env bash
# Compiles kernels/*.cu to kernels/ptx/*.ptx, which the program embeds: a user needs a driver only.
#
# Usage: kernels/build.sh [FOLDER]. FOLDER holds CUDA compilers as Python packages lay them out: it is searched for
# libnvrtc.so.12 (CUDA 12.4: its PTX runs from driver 550 on), which is used if it is there, and else for bin/nvcc, or nvcc
# of the PATH (13.0: needs driver 580). No GPU is needed. The first line of each PTX file carries the SHA-256 of the
# sources; a test fails when it differs.
set -euo pipefail
cd "$(dirname "$0")"
mkdir -p ptx
folder=${1:-${CUDA_HOME:-/usr/local/cuda}}
nvrtc=$(find -L "$folder" -name 'libnvrtc.so.12' 2>/dev/null | head -n 1 || true)
nvcc=$(find -L "$folder" -path '*bin/nvcc' 2>/dev/null | head -n 1 || true)
nvcc=${nvcc:-$(command -v nvcc || true)}
hash=$(cat attend.cu attend_hopper.cu dense.cu measure.cu plan.cuh state.cuh tensor.cuh | sha256sum | cut -d ' ' -f 1)
own_hash() { cat "$1" bounded.cuh state.cuh tensor.cuh | sha256sum | cut -d ' ' -f 1; }

# compile SOURCE TARGET OUTPUT DEFINES…
compile() {
  local source=$1 target=$2 output=$3; shift 3
  if [ -n "$nvrtc" ]; then
    python3 nvrtc.py "$nvrtc" "$source" "$target" "ptx/$output.ptx" "$@"
  elif [ -n "$nvcc" ]; then
    "$nvcc" -ptx -std=c++17 -arch="compute_$target" "$@" -o "ptx/$output.ptx" "$source"
  else
    echo "no libnvrtc.so.12 and no nvcc in $folder" >&2; exit 1
  fi
  { echo "// sources sha256 $hash"; sed -e '/^\/\/ Cuda compilation tools/d;/^\/\/ Compiler Build ID/d;/^[[:space:]]*\/\//d;/^$/d' "ptx/$output.ptx"; } > ptx/next && mv ptx/next "ptx/$output.ptx"
}

compile measure.cu 80 measure
for type in F16 Bf16; do
  name=$(echo "$type" | tr FB fb)
  for size in 64 80 96 128; do
    compile attend.cu 80 "attend_${name}_$size" -DKERNEL_TYPE="$type" -DKERNEL_SIZE="$size"
    compile dense.cu 80 "dense_${name}_$size" -DKERNEL_TYPE="$type" -DKERNEL_SIZE="$size"
  done
  for size in 64 128; do
    compile attend_hopper.cu 90a "attend_hopper_${name}_$size" -DKERNEL_TYPE="$type" -DKERNEL_SIZE="$size"
  done
done
for source in product step; do  # not of the attention kernels' sources: a hash of their own
  hash=$(own_hash "$source.cu")
  for target in 80 90; do  # launches overlap from 90 on
    suffix=; [ $target = 80 ] || suffix=_$target
    compile "$source.cu" $target "${source}_f16$suffix" -DKERNEL_TYPE=F16
    compile "$source.cu" $target "${source}_bf16$suffix" -DKERNEL_TYPE=Bf16
  done
done
for source in int4 heavy; do
  hash=$(own_hash "$source.cu")
  for type in F16 Bf16; do
    compile "$source.cu" 80 "${source}_$(echo "$type" | tr FB fb)" -DKERNEL_TYPE="$type"
  done
done
for source in select picked; do
  hash=$(cat "$source.cu" select.cuh bounded.cuh keep.cuh state.cuh tensor.cuh | sha256sum | cut -d ' ' -f 1)
  for type in F16 Bf16; do
    compile "$source.cu" 80 "${source}_$(echo "$type" | tr FB fb)" -DKERNEL_TYPE="$type"
  done
done
for source in head offload; do
  hash=$(own_hash "$source.cu")
  compile "$source.cu" 80 "$source"
done
hash=$(cat keep.cu keep.cuh state.cuh | sha256sum | cut -d ' ' -f 1)
compile keep.cu 80 keep
ls -l ptx
