# Every target has a one-line help: `make` prints it.
.DEFAULT_GOAL := help
SHELL := /bin/bash

# The race detector needs cgo, a C compiler and the C library's headers. Without them the tests run without it. The
# check is done when a recipe runs, because the target setup may have installed them.
RACE = $(shell [ "$$(go env CGO_ENABLED)" = 1 ] && $$(go env CC) -E -include stdlib.h -x c /dev/null >/dev/null 2>&1 && echo -race)
# The path of a tool, which is built if need be. Its module is not in go.work, so that it does not decide about versions.
tool = $$(GOWORK=off go tool -n -modfile=internal/tools/go.mod $(1))
SCRIPTS = .ci/run $(shell find testdata docs/examples internal/adapters/testdata -name '*.sh')
SYSTEMS := linux/amd64 linux/arm64 darwin/amd64 darwin/arm64 windows/amd64 windows/arm64
# The modules of go.work. internal/bench is only vetted: it is run by hand.
MODULES := . internal/adapters examples internal/testserver/remote pglock/cmd/pglock pglock/otelpglock
PACKAGES := ./... $(patsubst %,./%/...,$(filter-out .,$(MODULES)))

# Tests that run without the race detector, which takes more time than it could find in them: they are of one goroutine,
# start the command, or ask a server. The simulator's goroutines take turns. `make nightly` has the detector for all.
# The first ones take long and leave the processors idle.
PLAIN := internal/bench/... pglock/internal/sim pglock/cmd/pglock/internal/doctor pglock/cmd/pglock pglock/cmd/pglock/internal/top \
	pglock/otelpglock pglock/ui internal/adapters/... internal/errs internal/readme internal/schema \
	internal/testserver/... internal/testserver/remote/... examples/... leasetable migrations
plain = $(addprefix ./,$(PLAIN))
# Tests with hundreds of connections, and with clocks, have the machine for themselves.
alone = ./pglock ./internal/chaos
raced = $$(go list $(PACKAGES) | grep -vxF "$$(go list $(plain) $(alone))")

.PHONY: help
help: ## Print this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: setup
setup: ## Install what the tests need and this machine lacks, where that is possible
	@testdata/setup.sh || [ $$? = 69 ]

.PHONY: test
test: setup ## Run all tests, those of concurrent code with the race detector, on a PostgreSQL that they find or start
	@testdata/skipped.sh go run ./internal/testserver/run $(MAKE) --no-print-directory go-test

.PHONY: go-test
go-test: # make lint vets. All is compiled first, so that no compiler runs beside tests with clocks.
	$(if $(RACE),,@echo "no C compiler: the tests run without the race detector")
	@go list -export -test -deps $(RACE) $(alone) $(raced) >/dev/null
	@go list -export -test -deps $(plain) ./internal/chaos >/dev/null
	go test $(RACE) -vet=off -timeout 60m -p 1 $(alone)
	go test $(RACE) -vet=off -timeout 60m $(raced)
	go test -vet=off -timeout 60m $(plain)

.PHONY: matrix
matrix: ## Run the tests on containers of PostgreSQL 13, 15, 17, 18 and 19; VERSIONS=18 for one of them
	testdata/matrix.sh $(or $(VERSIONS),13 15 17 18 19)

.PHONY: chaos
chaos: setup ## Run all kinds of locks under all faults, for ten minutes, then the long forms of other tests; SEED=n repeats, CHURN=1h
	PGLOCK_CHAOS=1 PGLOCK_CHAOS_SEED=$(SEED) go test -count=1 -timeout 30m -v ./internal/chaos
	PGLOCK_CHAOS=1 go test -count=1 -timeout 40m -v -run 'Chaos|Paused|Checker|Advance|ManyWaiters' ./fencing ./pglock/... ./leasetable
	PGLOCK_CHAOS=1 PGLOCK_CHURN=$(CHURN) go test -count=1 -timeout 3h -v ./internal/limits
	PGLOCK_CHAOS=1 go test -count=1 -timeout 20m -v -run Chaos ./internal/adapters/...

.PHONY: fuzz
fuzz: setup ## Run each fuzz test for ten seconds, or for TIME=10m; TARGET=FuzzLabels for one of them
	go run ./internal/testserver/run $(MAKE) --no-print-directory go-fuzz

.PHONY: go-fuzz
go-fuzz:
	@git grep -oh --untracked '^func $(or $(TARGET),Fuzz)[A-Za-z]*(f ' -- '*_test.go' >/dev/null || { echo "fuzz: no such test: $(TARGET)"; exit 1; }
	@git grep -o --untracked '^func $(or $(TARGET),Fuzz)[A-Za-z]*(f ' -- '*_test.go' | sed 's/:func / /; s/(f $$//' | while read -r file name; do \
		echo "$$name"; go test -run='^$$' -fuzz="^$$name\$$" -fuzztime=$(or $(TIME),10s) -parallel=1 "./$${file%/*}" </dev/null || exit 1; done

.PHONY: ha
ha: ## Run locks on a cluster of three servers under Patroni, with failovers, for ten minutes; ARGS="-replication sync"
	go build -o bin/ha ./internal/ha && exec bin/ha $(ARGS)

.PHONY: clock
clock: setup ## Run the tests of leases and the short chaos with a wall clock that is wrong by five minutes: it jumps, is ahead, is behind
	for how in jumps ahead behind; do testdata/clock/wrong.sh $$how ./pglock ./internal/chaos || exit; done

.PHONY: nightly
nightly: setup ## Run what takes too long for each change: builds for every system, the race detector for all tests, wrong clocks, PostgreSQL 13 and 19, the long forms of all tests
	$(MAKE) --no-print-directory release-check
	go run ./internal/testserver/run go test $(RACE) -count=1 -vet=off -timeout 60m $(plain)
	$(MAKE) --no-print-directory clock
	$(MAKE) --no-print-directory matrix VERSIONS="13 19"
	$(MAKE) --no-print-directory simulation
	$(MAKE) --no-print-directory chaos

.PHONY: simulation
simulation: ## Run simulated worlds on each processor for an hour, or for TIME=10m, and look for the bugs that are seeded in the client
	PGLOCK_SIM=$(or $(TIME),1h) go test -count=1 -timeout 3h -run Worlds -v ./pglock/internal/sim
	PGLOCK_SIM=1m go test -count=1 -run 'TestPayments$$|TestReports$$|TestLeaders$$' ./pglock/pglocktest
	PGLOCK_CHAOS=1 go test -count=1 -timeout 3h -run Bugs -v ./pglock/internal/sim

.PHONY: figures
figures: ## Put the figures that runs have written into the documents
	go test -count=1 -run FiguresAre ./internal/readme -update

.PHONY: evidence
evidence: ## Run the long checks for hours and keep what they found, with PARTS="chaos ha" some of them
	@go build -o bin/ ./internal/evidence && exec bin/evidence $(PARTS)

.PHONY: demo
demo: ## Show what the lock and the guard are worth: processes compete, one is killed, one is paused; KEEP=1 for the README
	@[ -n "$$PGLOCK_TEST_DATABASE_URL$$PGLOCK_TEST_IMAGE" ] || testdata/setup.sh postgres || [ $$? = 69 ]
	set -o pipefail; go run ./internal/demo $(if $(KEEP),| tee testdata/demo.txt)

.PHONY: bare
bare: ## Run `make demo` and `make test` on a bare Debian in a temporary directory, as root
	testdata/bare.sh 'make demo' 'make test'

.PHONY: bench
bench: ## Measure against floors and peers; ROW=B1 for some rows, KEEP=1 keeps them; QUICK=1, BASE=commit
	@# Signals reach the program itself: "go run" would leave it behind.
	cd internal/bench && go build -o ../../bin/ . && exec ../../bin/bench $(if $(ROW),-row $(ROW)) $(if $(KEEP),-keep) \
		$(if $(QUICK),-quick) $(if $(BASE),-base $(if $(wildcard $(BASE)),$(abspath $(BASE)),$(BASE)))

.PHONY: build
build: ## Build the command into bin/
	go build -o bin/ ./pglock/cmd/pglock

.PHONY: release-check
release-check: ## Build the command for every system, and try a release of HEAD from outside the tree, without publishing it
	@for s in $(SYSTEMS); do echo "build $$s"; GOOS=$${s%/*} GOARCH=$${s#*/} CGO_ENABLED=0 go build -o /dev/null ./pglock/cmd/pglock || exit 1; done
	@testdata/release/check.sh

.PHONY: release
release: ## Tag a release of all modules, VERSION=v0.1.0, which is published by pushing the tags
	@testdata/release/tag.sh $(VERSION)

.PHONY: api
api: ## Compare the API with the last release; BASE=v0.1.0 for another one
	@testdata/release/api.sh $(BASE)

.PHONY: image
image: ## Build a PostgreSQL image for the tests where no container registry can be reached
	testdata/image/build.sh

.PHONY: pictures
pictures: ## Make the pictures of pglock top and pglock ui from a scripted run
	go run ./internal/testserver/run testdata/pictures.sh

.PHONY: lint
lint: ## Check formatting, vet, lint, also for other systems, and shell scripts where shellcheck is installed
	@test -z "$$(gofmt -l .)" || { gofmt -d .; exit 1; }
	@# golangci-lint vets the others.
	go vet ./internal/bench/...
	@# No file is for one processor only.
	@for s in darwin windows; do packages=$$($(tagged)); echo "build all for $$s, vet:" $$packages; \
		for check in "build ./..." "vet $$packages"; do GOOS=$$s GOARCH=arm64 CGO_ENABLED=0 go $$check || exit 1; done; done
	@if command -v shellcheck >/dev/null; then shellcheck -x $(SCRIPTS); else echo "lint: shellcheck is not installed"; fi
	$(call tool,golangci-lint) run $(PACKAGES)

# The packages with files for some systems only.
tagged = go list -f '{{if .IgnoredGoFiles}}{{.ImportPath}}{{end}}' ./...

.PHONY: vuln
vuln: ## Look for known vulnerabilities, where their database can be reached
	@out=$$(GOWORK=off $(call tool,govulncheck) ./... 2>&1) && status=0 || status=$$?; echo "$$out"; \
	case "$$out" in *"fetching vulnerabilities"*) echo "vuln: NOT CHECKED: the vulnerability database could not be reached"; exit 0;; esac; \
	exit $$status

.PHONY: tidy
tidy: ## Bring go.mod and go.sum of every module in order; DIFF=-diff only says what is not
	@# The go command does so for one module alone, so each has a replace directive for those of this repository.
	@for m in $(MODULES) internal/bench; do echo "tidy $$m"; GOWORK=off go -C $$m mod tidy $(DIFF) || exit 1; done
