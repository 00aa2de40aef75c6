#!/usr/bin/env bash
# Compares the API of all public packages with that of the last tag, or of the one that is given. Incompatible changes
# have to stand in the changelog, under Changed or Removed.
set -euo pipefail
cd "$(git rev-parse --show-toplevel)"
tag=${1:-$(git describe --tags --match 'v*' --abbrev=0 2>/dev/null || true)}
if [ -z "$tag" ]; then
  echo "api: nothing was released yet"
  exit 0
fi
tool=$(GOWORK=off go tool -n -modfile=internal/tools/go.mod apidiff)
work=$(mktemp -d)
trap 'git worktree remove --force "$work/base" 2>/dev/null || true; rm -rf "$work"' EXIT
git worktree add -q --detach "$work/base" "$tag"
export GOWORK=off
changes=
for module in . pglock/otelpglock; do
  path=$(go -C "$module" list -m)
  (cd "$work/base/$module" && "$tool" -m -w "$work/export" "$path") 2>"$work/log" || { cat "$work/log"; exit 1; }
  changes+=$(cd "$module" && "$tool" -m -incompatible "$work/export" "$path" 2>/dev/null)
done
if [ -z "$changes" ]; then
  echo "api: compatible with $tag"
  exit 0
fi
echo "api: incompatible with $tag:"
echo "$changes"
sed -n '/^## \[Unreleased\]/,/^## \[[0-9]/p' CHANGELOG.md | grep -qE '^### (Changed|Removed)' || {
  echo "api: CHANGELOG.md does not say so under Changed or Removed"
  exit 1
}
