#!/usr/bin/env bash
# compute-sanitizer over every hand-written implementation's smoke workloads. Logs go to the folder given (default: sanitizer/).
# SANITIZE="--also kernels.json --seconds 300 numba_cuda" are arguments of scripts/sanitize.py.
#   scripts/sanitize.sh [FOLDER] [TOOL...]        tools: memcheck racecheck initcheck synccheck; default memcheck racecheck
# Exit status 1 where anything is found or a result is wrong, 2 where compute-sanitizer is missing.
set -euo pipefail
folder=${1:-sanitizer}
shift || true
tools=("$@")
[ ${#tools[@]} -gt 0 ] || tools=(memcheck racecheck)
command -v compute-sanitizer >/dev/null || { echo 'compute-sanitizer is not on PATH: it comes with the CUDA toolkit' >&2; exit 2; }
mkdir -p "$folder"
export PYTORCH_NO_CUDA_MEMORY_CACHING=1
here=$(dirname "${BASH_SOURCE[0]}")
status=0
for tool in "${tools[@]}"; do
    # API errors are left out: libraries ask for driver entry points that may not be there, and handle the answer.
    options=(--tool "$tool")
    [ "$tool" != memcheck ] || options+=(--report-api-errors no --leak-check no)
    compute-sanitizer "${options[@]}" --log-file "$folder/$tool.log" python3 "$here/sanitize.py" ${SANITIZE:-} 2>&1 | tee "$folder/$tool.out" || status=1
    found=$(grep -oE '(ERROR|RACECHECK) SUMMARY: .*' "$folder/$tool.log" | tail -n 1)
    echo "$tool: ${found:-no summary: the run did not end}"
    case "$found" in *' 0 errors'* | *' 0 hazards'*) ;; *) status=1 ;; esac
done
exit $status
