#!/usr/bin/env bash
# compute-sanitizer over every implementation's smoke workloads, with torch's caching allocator off so that an access past the end of
# a tensor is one past the end of an allocation. Logs go to the folder given (default: sanitizer/); exit status 1 if anything is found.
#   scripts/sanitize.sh [FOLDER] [TOOL...]        tools: memcheck racecheck initcheck synccheck; default memcheck racecheck
set -euo pipefail
folder=${1:-sanitizer}
shift || true
tools=("$@")
[ ${#tools[@]} -gt 0 ] || tools=(memcheck racecheck)
command -v compute-sanitizer >/dev/null || { echo 'compute-sanitizer is not on PATH: it comes with the CUDA toolkit' >&2; exit 2; }
mkdir -p "$folder"
export PYTORCH_NO_CUDA_MEMORY_CACHING=1
status=0
for tool in "${tools[@]}"; do
    log="$folder/$tool.log"
    compute-sanitizer --tool "$tool" --target-processes all --log-file "$folder/$tool.%p.part" \
        python3 -m opwise check --set smoke --json >"$folder/$tool.jsonl" || status=1
    cat "$folder/$tool".*.part >"$log" && rm -f "$folder/$tool".*.part
    found=$(grep -c 'ERROR SUMMARY: [1-9]\|RACECHECK SUMMARY: [1-9]' "$log" || true)
    cells=$(wc -l <"$folder/$tool.jsonl")
    echo "$tool: $cells cells, $found processes with findings"
    [ "$found" = 0 ] || status=1
done
exit $status
