# Every target has a one-line help: `make` prints it.
.DEFAULT_GOAL := help
SHELL := /bin/bash

# The race detector needs cgo, a C compiler and the C library's headers. Without them the tests run without it. The
# check is done when a recipe runs, because the target setup may have installed them.
RACE = $(shell [ "$$(go env CGO_ENABLED)" = 1 ] && $$(go env CC) -E -include stdlib.h -x c /dev/null >/dev/null 2>&1 && echo -race)
TOOLS := go tool -modfile=internal/tools/go.mod
SCRIPTS = .ci/run $(shell find testdata -name '*.sh')
SYSTEMS := linux/amd64 linux/arm64 darwin/amd64 darwin/arm64 windows/amd64 windows/arm64

.PHONY: help
help: ## Print this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: setup
setup: ## Install what the tests need and this machine lacks, where that is possible
	@testdata/setup.sh || [ $$? = 69 ]

.PHONY: test
test: setup ## Run all tests, with the race detector, on a PostgreSQL that they find or start
	@testdata/skipped.sh go run ./internal/testserver/run $(MAKE) --no-print-directory go-test

.PHONY: go-test
go-test:
	$(if $(RACE),,@echo "no C compiler: the tests run without the race detector")
	go test $(RACE) ./...
	cd internal/bench && go test ./...
	cd internal/adapters && go test $(RACE) ./...
	cd pglock/otelpglock && go test $(RACE) ./...

.PHONY: matrix
matrix: ## Run the tests on containers of PostgreSQL 13, 15, 17 and 18; VERSIONS=18 for one of them
	testdata/matrix.sh $(or $(VERSIONS),13 15 17 18)

.PHONY: chaos
chaos: setup ## Run the experiments with killed and paused holders in full length, for minutes
	PGLOCK_CHAOS=1 go test -count=1 -timeout 40m -v -run 'Chaos|Paused|Checker|Advance' ./fencing ./migrations/... ./pglock/... ./leasetable
	cd internal/adapters && PGLOCK_CHAOS=1 go test -count=1 -timeout 20m -v -run Chaos ./...

.PHONY: clock
clock: setup ## Run the lease tests with a wall clock that jumps by five minutes, ten times a second
	testdata/clock/jump.sh ./leasetable

.PHONY: demo
demo: ## Show what the lock and the guard are worth: processes compete, one is killed, one is paused
	@[ -n "$$PGLOCK_TEST_DATABASE_URL$$PGLOCK_TEST_IMAGE" ] || testdata/setup.sh postgres || [ $$? = 69 ]
	go run ./internal/demo

.PHONY: bare
bare: ## Run `make demo` and `make test` on a bare Debian in a temporary directory, as root
	testdata/bare.sh 'make demo' 'make test'

.PHONY: bench
bench: ## Measure against floors and peers; ROW=B1 for some rows, KEEP=1 keeps them; QUICK=1, BUSY=1, BASE=commit
	@# Signals reach the program itself: "go run" would leave it behind.
	cd internal/bench && go build -o ../../bin/ . && exec ../../bin/bench $(if $(ROW),-row $(ROW)) $(if $(KEEP),-keep) \
		$(if $(QUICK),-quick) $(if $(BUSY),-busy) $(if $(BASE),-base $(if $(wildcard $(BASE)),$(abspath $(BASE)),$(BASE)))

.PHONY: build
build: ## Build the command into bin/
	go build -o bin/ ./pglock/cmd/pglock

.PHONY: release-check
release-check: ## Build the command for every system and check the release configuration, without a release
	@for s in $(SYSTEMS); do echo "build $$s"; GOOS=$${s%/*} GOARCH=$${s#*/} CGO_ENABLED=0 go build -trimpath -o /dev/null ./pglock/cmd/pglock || exit 1; done
	@if command -v goreleaser >/dev/null; then goreleaser check && goreleaser release --snapshot --clean --skip=publish; \
	else echo "release-check: goreleaser is not installed: its configuration was not checked"; fi

.PHONY: image
image: ## Build a PostgreSQL image for the tests where no container registry can be reached
	testdata/image/build.sh

.PHONY: lint
lint: ## Check formatting, vet for every system, lint, also shell scripts where shellcheck is installed
	@test -z "$$(gofmt -l .)" || { gofmt -d .; exit 1; }
	@for s in $(SYSTEMS); do echo "vet $$s"; GOOS=$${s%/*} GOARCH=$${s#*/} CGO_ENABLED=0 go vet ./... || exit 1; done
	cd internal/bench && go vet ./...
	@if command -v shellcheck >/dev/null; then shellcheck -x $(SCRIPTS); else echo "lint: shellcheck is not installed"; fi
	$(TOOLS) golangci-lint run ./...
	cd internal/adapters && go vet ./... && go tool -modfile=../tools/go.mod golangci-lint run ./...
	cd pglock/otelpglock && go vet ./... && go tool -modfile=../../internal/tools/go.mod golangci-lint run ./...

.PHONY: vuln
vuln: ## Look for known vulnerabilities, where their database can be reached
	@out=$$($(TOOLS) govulncheck ./... 2>&1) && status=0 || status=$$?; echo "$$out"; \
	case "$$out" in *"fetching vulnerabilities"*) echo "vuln: NOT CHECKED: the vulnerability database could not be reached"; exit 0;; esac; \
	exit $$status

.PHONY: tidy
tidy: ## Bring go.mod and go.sum of every module in order
	go mod tidy
	cd internal/bench && go mod tidy
	cd internal/adapters && go mod tidy
	cd pglock/otelpglock && go mod tidy
