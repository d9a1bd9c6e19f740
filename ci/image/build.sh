#!/usr/bin/env bash
# Build the image of an engine release that this suite has a lock of, without any image registry: Debian by debootstrap,
# and on it the managed environment that `python -m ci engines install` makes.
#
#     ci/image/build.sh vllm 0.32.0      makes dsv4-conformance/vllm:0.32.0
set -euo pipefail
engine=$1 version=$2
python=${PYTHON:-.venv/bin/python}
name=dsv4-conformance/$engine:$version

environment=$("$python" -c "
from fixtures.launch.environments import ensure
print(ensure('$engine', '$version').python.parents[1])")
site=$(find "$environment/lib" -maxdepth 2 -name site-packages)
minor=$(basename "$(dirname "$site")")   # python3.11
mirror=$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' | head -1)

root=$(mktemp -d "${TMPDIR:-/tmp}/image.XXXXXX")
trap 'rm -rf "$root"' EXIT
debootstrap --variant=minbase --include="$minor-minimal,lib$minor-stdlib,libnuma1" bookworm "$root" "$mirror" >"$root.log" ||
  { tail -20 "$root.log"; exit 1; }
mkdir -p "$root/opt/engine/bin" "$root/opt/engine/lib/$minor"
printf 'home = /usr/bin\ninclude-system-site-packages = false\n' >"$root/opt/engine/pyvenv.cfg"
ln -s "/usr/bin/$minor" "$root/opt/engine/bin/python3"
cp -al "$site" "$root/opt/engine/lib/$minor/" 2>/dev/null || cp -a "$site" "$root/opt/engine/lib/$minor/"
tar -C "$root" -c . | docker import -c 'ENV PATH=/opt/engine/bin:/usr/bin:/bin' - "$name" >/dev/null
echo "$name"
