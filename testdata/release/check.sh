#!/usr/bin/env bash
# Tries a release without publishing it: makes the tags in a clone of HEAD, and uses them from outside the tree through
# a module proxy of files, as users will. With goreleaser on PATH it also builds what is attached to the release.
#
#     testdata/release/check.sh [v0.1.0 [DIRECTORY]]
#
# The files of goreleaser and the proxy are left in the directory, if one is given.
set -euo pipefail
cd "$(git rev-parse --show-toplevel)"
version=${1:-v0.1.0-check}
root=github.com/pglock/pglock-go
work=$(mktemp -d)
trap 'chmod -R u+w "$work"; rm -rf "$work"' EXIT
out=${2:-$work/out}
mkdir -p "$out"

step() { echo "release-check: $*"; }
step "tags in a clone"
git clone -q "$PWD" "$work/clone"
cd "$work/clone"
git config user.name release-check
git config user.email release-check@localhost
testdata/release/tag.sh "$version"
git checkout -q "$version"
! grep -n "pglock.* => " go.mod pglock/cmd/pglock/go.mod pglock/otelpglock/go.mod || { echo "a module that users install has a replace directive"; exit 1; }

step "a module proxy made from the tags"
GOWORK=off go -C internal/tools run ./modproxy "$PWD" "$out/proxy" "$version" "$version" \
  "$root" "$root/pglock/cmd/pglock" "$root/pglock/otelpglock"
cache=$(go env GOMODCACHE)
export GOWORK=off GOPRIVATE='' GONOSUMDB="$root,$root/*" GOMODCACHE="$work/cache" GOFLAGS=-modcacherw
GOPROXY="file://$out/proxy,file://$cache/cache/download,$(go env GOPROXY)"
export GOPROXY

step "go install of the command"
GOBIN="$work/bin" go install "$root/pglock/cmd/pglock@$version"
"$work/bin/pglock" --version | tee "$work/version"
grep -qx "pglock $version" "$work/version" || { echo "its version is not $version"; exit 1; }

step "a program that requires the release: the README's and the examples"
mkdir "$work/consumer"
cp -r examples/. "$work/consumer"
cp -r internal/readme/quickstart "$work/consumer/"
cd "$work/consumer"
rm -f go.mod go.sum
go mod init example.com/consumer 2>/dev/null
go get "$root@$version" "$root/pglock/otelpglock@$version"
mkdir metrics
cat >metrics/metrics.go <<'EOF'
// Package metrics uses the module of metrics.
package metrics

import _ "github.com/pglock/pglock-go/pglock/otelpglock"
EOF
go mod tidy
go vet ./...
go mod edit -json | grep -q "\"Version\": \"$version\"" || { echo "go.mod does not require $version"; exit 1; }

step "the quick start and the examples, on tables that the installed command makes"
cat >"$work/try.sh" <<'EOF'
set -eu
unset PGLOCK_TESTSERVER_SHARED
export DATABASE_URL=$PGLOCK_TEST_DATABASE_URL
"$1" --database-url "$DATABASE_URL" migrate up
go run ./quickstart 2>&1 | tee /dev/stderr | grep -q 'the balance is 90'
"$1" --database-url "$DATABASE_URL" run check -- "$1" --database-url "$DATABASE_URL" show check
go test -count=1 .
EOF
go build -C "$work/clone" -o "$work/server" ./internal/testserver/run
"$work/server" sh "$work/try.sh" "$work/bin/pglock"

step "a program that only locks: its modules"
mkdir "$work/locker"
cp -r "$work/clone/internal/readme/quickstart/." "$work/locker"
cd "$work/locker"
go mod init example.com/locker 2>/dev/null
go get "$root@$version"
GOMODCACHE="$work/tidy" go mod tidy
find "$work/tidy/cache/download" -name '*.zip' | sed "s,$work/tidy/cache/download/,,; s,/@v/.*,," | sort >"$work/modules"
cat "$work/modules"
# go mod tidy also reads the tests of the packages that a program imports. Those of pgx and golang-migrate are not ours.
while read -r module; do
  if go mod why -m "$module" | grep "^$root.*\.test\$"; then
    echo "go mod tidy downloads $module, which only our tests need"
    exit 1
  fi
done < <(grep -v -f "$work/clone/testdata/modules.golden" "$work/modules" | grep -v '^github.com/pglock/')

cd "$work/clone"
if ! command -v goreleaser >/dev/null; then
  step "NOT RUN: goreleaser is not installed, so the files of the release were not built"
  exit 0
fi
step "the files of the release"
goreleaser check
skip=publish,validate
for tool in syft:sbom cosign:sign docker:docker; do
  command -v "${tool%:*}" >/dev/null || skip+=",${tool#*:}"
done
GORELEASER_CURRENT_TAG=$version goreleaser release --clean --skip="$skip"
rm -rf "$out/dist"
cp -r dist "$out/dist"
(cd "$out/dist" && find . -maxdepth 1 -type f | sort)
