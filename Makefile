# Every target has a one-line help: `make` prints it.
.DEFAULT_GOAL := help
SHELL := /bin/bash

# The race detector needs cgo and a C compiler; without them the tests run all the same.
RACE := $(if $(and $(filter 1,$(shell go env CGO_ENABLED)),$(shell command -v "$$(go env CC)")),-race)
TOOLS := go tool -modfile=internal/tools/go.mod
SYSTEMS := linux/amd64 linux/arm64 darwin/amd64 darwin/arm64 windows/amd64 windows/arm64

.PHONY: help
help: ## Print this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: test
test: ## Run all tests, with the race detector, on a PostgreSQL that they find or start
	$(if $(RACE),,@echo "no C compiler: the tests run without the race detector")
	go test $(RACE) ./...
	cd internal/bench && go test ./...
	cd internal/adapters && go test $(RACE) ./...

.PHONY: chaos
chaos: ## Carry out the experiments with killed and paused holders in full length, which takes minutes
	PGLOCK_CHAOS=1 go test -count=1 -timeout 40m -v -run 'Chaos|Paused|Checker|Advance' ./fencing ./migrations ./pglock/... ./leasetable
	cd internal/adapters && PGLOCK_CHAOS=1 go test -count=1 -timeout 20m -v -run Chaos ./...

.PHONY: clock
clock: ## Run the lease tests with a wall clock that jumps by five minutes, ten times a second
	testdata/clock/jump.sh ./leasetable

.PHONY: demo
demo: ## Processes fight for a lease, one is killed, one paused: what the lock and the guard are worth
	go run ./internal/demo

.PHONY: bench
bench: ## Measure against floors and peers, as ratios in one run; ROW=P1 for one row, KEEP=1 to keep it
	cd internal/bench && go run . $(if $(ROW),-row $(ROW)) $(if $(KEEP),-keep)

.PHONY: build
build: ## Build the command into bin/
	go build -o bin/ ./pglock/cmd/pglock

.PHONY: image
image: ## Build a PostgreSQL image for the tests where no container registry can be reached
	testdata/image/build.sh

.PHONY: lint
lint: ## Check formatting, vet for every system, lint
	@test -z "$$(gofmt -l .)" || { gofmt -d .; exit 1; }
	@for s in $(SYSTEMS); do echo "vet $$s"; GOOS=$${s%/*} GOARCH=$${s#*/} CGO_ENABLED=0 go vet ./... || exit 1; done
	cd internal/bench && go vet ./...
	$(TOOLS) golangci-lint run ./...
	cd internal/adapters && go vet ./... && go tool -modfile=../tools/go.mod golangci-lint run ./...

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
