#!/usr/bin/env bash
# Make images without any image registry: Debian by debootstrap, and on it an engine release that this suite has a lock
# of, as `python -m ci engines install` installs it.
#
#     ci/image/build.sh base             makes dsv4-conformance/base:latest
#     ci/image/build.sh vllm 0.32.0      makes dsv4-conformance/vllm:0.32.0, and the base where it is missing
set -euo pipefail
base=dsv4-conformance/base:latest
root=$(mktemp -d "${TMPDIR:-/tmp}/image.XXXXXX")
trap 'rm -rf "$root"' EXIT

if ! docker image inspect "$base" >/dev/null 2>&1; then
  # shellcheck disable=SC2016 # apt fills this in
  mirror=$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' 'Codename: bookworm' | head -1)
  # Engines compile on a CPU: a compiler with the headers, and openssl for the names of what it made.
  packages=python3,python3-dev,libnuma1,g++,openssl
  debootstrap --variant=minbase --include="$packages" bookworm "$root/base" "$mirror" >"$root/log" ||
    { tail -20 "$root/log"; exit 1; }
  tar -C "$root/base" -c . | docker import - "$base" >/dev/null
  rm -rf "$root/base"
fi
[ "$1" != base ] || { echo "$base"; exit 0; }

engine=$1 version=$2 name=dsv4-conformance/$1:$2
site=$("${PYTHON:-.venv/bin/python}" -c "
from fixtures.launch.environments import ensure
print(*ensure('$engine', '$version', say=lambda line: None).python.parents[1].glob('lib/*/site-packages'))")
minor=$(basename "$(dirname "$site")")   # python3.11: it must be the base's own, for which the wheels were made
container=$(docker create "$base" true)
docker export "$container" | tar -x -C "$root"
docker rm "$container" >/dev/null
[ -e "$root/usr/bin/$minor" ] || { echo "the base has no $minor, for which $engine $version is installed" >&2; exit 1; }
mkdir -p "$root/opt/engine/bin" "$root/opt/engine/lib/$minor"
printf 'home = /usr/bin\ninclude-system-site-packages = false\n' >"$root/opt/engine/pyvenv.cfg"
ln -s "/usr/bin/$minor" "$root/opt/engine/bin/python3"
# Linked, not copied: it takes gigabytes. Where the folders are on two disks, there is no other way.
cp -al "$site" "$root/opt/engine/lib/$minor/" 2>/dev/null || cp -a "$site" "$root/opt/engine/lib/$minor/"
tar -C "$root" -c . | docker import -c 'ENV PATH=/opt/engine/bin:/usr/bin:/bin' - "$name" >/dev/null
echo "$name"
