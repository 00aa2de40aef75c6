#!/usr/bin/env bash
# Makes the tags of a release in the repository of the current directory: testdata/release/tag.sh v0.1.0
#
# The modules that users install beside the root must require its version instead of replacing it with a directory,
# so a commit on top of HEAD does that. It is on no branch: all tags of the release point to it. The root's files
# are the same in both, so its hash in their go.sum can be computed before anything is published.
set -euo pipefail
cd "$(git rev-parse --show-toplevel)"
version=${1:?usage: testdata/release/tag.sh vMAJOR.MINOR.PATCH}
root=github.com/pglock/pglock-go
modules=(pglock/cmd/pglock pglock/otelpglock)

fail() { echo "release: $*" >&2; exit 1; }
[[ $version =~ ^v[0-9]+\.[0-9]+\.[0-9]+(-[0-9A-Za-z.]+)?$ ]] || fail "$version is no version: it must be like v0.1.0"
[ -z "$(git status --porcelain)" ] || fail "the working tree has changes"
[[ $version == *-* ]] || grep -q "^## \[${version#v}\] - [0-9-]*$" CHANGELOG.md || fail "CHANGELOG.md has no section \"## [${version#v}] - DATE\""
for tag in "$version" "${modules[@]/%//$version}"; do
  ! git rev-parse -q --verify "refs/tags/$tag" >/dev/null || fail "the tag $tag exists"
done

work=$(mktemp -d)
trap 'git worktree remove --force "$work/tree" 2>/dev/null || true; rm -rf "$work"' EXIT
git worktree add -q --detach "$work/tree" HEAD
GOWORK=off go -C internal/tools run ./modproxy "$PWD" "$work/proxy" "$version" HEAD "$root"
export GOWORK=off GOFLAGS=-mod=mod GONOSUMDB="$root,$root/*" GOPRIVATE='' GOMODCACHE="$work/cache"
cache=$(GOMODCACHE='' go env GOMODCACHE)
# The cache of this machine serves the other modules. The release's own must not enter it: its version may change.
GOPROXY="file://$work/proxy,file://$cache/cache/download,$(go env GOPROXY)"
export GOPROXY
for m in "${modules[@]}"; do
  (
    cd "$work/tree/$m"
    go mod edit -dropreplace "$root" -require "$root@$version"
    go mod tidy
  )
done
chmod -R u+w "$work/cache" # the go command makes it read-only
git -C "$work/tree" commit -qam "Release $version"
for tag in "$version" "${modules[@]/%//$version}"; do
  git -C "$work/tree" tag -a "$tag" -m "$root $version"
done
echo "The release is tagged. To publish it:"
echo "    git push origin $version ${modules[*]/%//$version}"
