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

# build DIR [cmake options]: configures where options changed, builds what changed.
build() {
    local dir=$1
    shift
    mkdir -p "$dir"
    cmake -B "$dir" "$@" >"$dir/configure.log" 2>&1 || { cat "$dir/configure.log"; return 1; }
    cmake --build "$dir" -j "$(nproc)"
}
