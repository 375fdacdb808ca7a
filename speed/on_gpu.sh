#!/usr/bin/env bash
# All that is to be run on a GPU once: the methods' contract in float32 and bfloat16, the demo, every measurement of speed.
#
#     bash speed/on_gpu.sh                                               # on a machine with a GPU, after `make setup`
#     DEVICE=cpu TESTS="llama and zero_shot" bash speed/on_gpu.sh         # on any other: that this script works
#
# A step that fails or takes too long does not keep the next from running. What came of each is in $OUT/results.md, what
# it printed beside it; the exit code is 1 if any step failed.
#
#   DEVICE   where the tests put their models (cuda); with cpu, GPUs are hidden from all steps
#   LIMIT    seconds a step may take (1800)
#   TESTS    of the contract, those that this expression of pytest's -k chooses (all)
#   WORKERS  processes that run tests side by side (4; 0: none beside this one)
#   OUT      folder of the results (runs/gpu)
set -uo pipefail
cd "$(dirname "$0")/.."

device=${DEVICE:-cuda} limit=${LIMIT:-1800} tests=${TESTS:-} workers=${WORKERS:-4} out=${OUT:-runs/gpu}
python=.venv/bin/python
[ "$device" != cpu ] || export CUDA_VISIBLE_DEVICES=
export HF_HUB_OFFLINE=1 ICRBENCH_TEST_DEVICE=$device
mkdir -p "$out"
failed=0
steps=()  # names of those that were run
rows=()   # of the table

step() { # step NAME COMMAND...: run a command within the limit, its output in a file
    local name=$1 begin=$SECONDS code outcome
    shift
    echo "$name ..."
    timeout --kill-after=30 "$limit" "$@" >"$out/$name.txt" 2>&1 </dev/null
    code=$?
    case $code in
        0) outcome=passed ;;
        124 | 137) outcome="stopped after $limit s" ;;
        *) outcome="failed with code $code" ;;
    esac
    [ $code = 0 ] || failed=1
    echo "    $outcome"
    steps+=("$name")
    rows+=("| $name | $outcome | $((SECONDS - begin)) |")
}

contract() { # contract DTYPE FILE...
    ICRBENCH_TEST_DTYPE=$1 step "contract-$1" "$python" -m pytest -q -n "$workers" ${tests:+-k "$tests"} "${@:2}"
}

step machine "$python" -c "
import platform, torch, transformers
device = torch.device('$device')
print('python', platform.python_version(), 'torch', torch.__version__, 'transformers', transformers.__version__)
print(torch.cuda.get_device_name(device) if device.type == 'cuda' else platform.processor() or device)
print('sum of ones there:', float(torch.ones(1000, device=device).sum()))"
contract float32 tests/test_contract.py tests/test_devices.py
contract bfloat16 tests/test_contract.py
step demo "$python" -m icrbench demo --out "$out/demo"
for script in speed/*.py; do
    name=$(basename "$script" .py)
    case $name in common | preset_search) continue ;; esac # no measurements
    step "speed-$name" "$python" "$script"
done

{
    echo "# On $device, $(date --utc +%Y-%m-%d)"
    echo
    echo "Commit $(git rev-parse --short HEAD 2>/dev/null || echo unknown), at most $limit s a step."
    echo
    echo "| step | outcome | seconds |"
    echo "|---|---|---|"
    printf '%s\n' "${rows[@]}"
    for name in "${steps[@]}"; do
        printf '\n## %s\n\n```\n' "$name"
        tr '\r' '\n' <"$out/$name.txt" | grep -v '^ *$' | tail -n 30
        echo '```'
    done
} >"$out/results.md"
printf '\n| step | outcome | seconds |\n|---|---|---|\n'
printf '%s\n' "${rows[@]}"
echo "Written to $out/results.md"
exit $failed
